"""Networks that are late, hang for a while or lose packets: slower, and the same verdicts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.extensions.machines import switch as switches
from tests.acceptance.extensions.machines.cluster import Cluster, Session, problem, wait_for
from tests.acceptance.extensions.machines.switch import Switch
from tests.acceptance.suite import Running, Suite, flat

EXAMPLES = """
    import os
    import signal
    import time

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=4, timeout=120)


    def test_sum(ddp):
        total = torch.full((3,), float(ddp.rank))
        dist.all_reduce(total)
        assert total.tolist() == [6.0] * 3


    def test_many_collectives(ddp):
        for _ in range(10):
            dist.barrier()


    @pytest.mark.ddp(init=False)
    def test_own_group(ddp):
        dist.init_process_group()
        total = torch.ones(1)
        dist.all_reduce(total)
        dist.destroy_process_group()
        assert total.item() == 4


    def test_gather(ddp):
        assert ddp.gather("x" * 100_000 + str(ddp.rank))[3][-1] == "3"


    def test_slow_and_legal(ddp):
        if ddp.rank == 3:
            time.sleep(2)
        dist.barrier()


    def test_assert(ddp):
        print("printed by", ddp.rank)
        assert ddp.rank != 3


    def test_deadlock(ddp):
        if ddp.rank != 2:
            dist.barrier()


    def test_mismatch(ddp):
        dist.all_reduce(torch.ones(1)) if ddp.rank < 2 else dist.broadcast(torch.ones(1), 0)


    def test_kill(ddp):
        if ddp.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()


    def test_after_all_that(ddp):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 4
"""

VERDICTS = {
    "test_sum": "passed",
    "test_many_collectives": "passed",
    "test_own_group": "passed",
    "test_gather": "passed",
    "test_slow_and_legal": "passed",
    "test_assert": "failed",
    "test_deadlock": "failed",
    "test_mismatch": "failed",
    "test_kill": "failed",
    "test_after_all_that": "passed",
}

TEXTS = {
    "test_assert": "rank 3 of 4 failed in call: assert 3 != 3",
    "test_deadlock": "deadlock: rank 0 waits in barrier #1 of the default group, rank 2 has ended",
    "test_mismatch": "mismatch: rank 0 waits in all_reduce #1 of the default group, rank 2 in",
    "test_kill": "rank 2 died of SIGKILL in call",
}


@pytest.fixture(scope="module")
def switch() -> Switch:
    return Switch()


@pytest.fixture(scope="module")
def cluster(switch: Switch) -> Iterator[Cluster]:
    """Two machines, whose network is in our hands."""
    if why := problem() or switches.problem():
        pytest.skip(why)
    with Cluster.up(switch=switch) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=["a round trip of 200 ms", "1 of 20 lost"])
def session(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    switch: Switch,
    new_suite: Callable[[], Suite],
) -> Session:
    suite = new_suite()
    suite.write("test_examples.py", EXAMPLES)
    before = switch.passed, switch.lost
    with switch.losing(0.05) if request.param == "1 of 20 lost" else switch.late(0.1):
        session = cluster.run(suite, torchrun=True, timeout=180)
    assert switch.passed > before[0] + 100
    assert (switch.lost > before[1]) == (request.param == "1 of 20 lost")
    return session


def test_verdicts_are_those_of_a_good_network(session: Session) -> None:
    found = {name: session.alpha[name].verdict for name in VERDICTS}
    assert found == VERDICTS, session.text


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_those_of_a_good_network(session: Session, name: str) -> None:
    assert TEXTS[name] in flat(session.alpha[name].text)


def test_all_end_and_leave_nothing(cluster: Cluster, session: Session) -> None:
    assert session.alpha.returncode == session.beta.returncode == 1, session.text
    assert cluster.survivors_after(3) == []


STALLED = """
    import os
    import time

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=4, timeout=60)


    def test_across_a_stall(ddp):
        if ddp.rank == 3:
            os.rename("waits", "begun")
        longest, goes_on = 0.0, True
        while goes_on:
            begun = time.monotonic()
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total.item() == 4
            # All leave after the same round.
            over = torch.tensor([os.path.exists("over")])
            dist.broadcast(over, 0)
            goes_on = not over.item()
            longest = max(longest, time.monotonic() - begun)
            time.sleep(0.05)
        assert longest > 2, "nothing has hung"


    def test_deadlock(ddp):
        if ddp.rank != 2:
            dist.barrier()


    def test_after(ddp):
        dist.barrier()
"""


def begun(cluster: Cluster, suite: Suite) -> list[Running]:
    """Both machines, when the first test has begun."""
    suite.write("test_a.py", STALLED)
    suite.write("waits", "")
    nodes = cluster.start(suite)
    wait_for(suite.directory / "begun")
    return nodes


def test_a_network_that_hangs_for_3_seconds_is_no_lost_machine(
    cluster: Cluster, switch: Switch, suite: Suite
) -> None:
    """A machine is given up after 5 s without a sign of life; ranks wait, which is no hang."""
    alpha, beta = begun(cluster, suite)
    time.sleep(1)
    with switch.stalled():
        time.sleep(3)
    suite.write("over", "")
    finished = alpha.finish(180)
    verdicts = {nodeid.rpartition(":")[2]: r.verdict for nodeid, r in finished.results.items()}
    assert verdicts == {
        "test_across_a_stall": "passed",
        "test_deadlock": "failed",
        "test_after": "passed",
    }, finished.tail()
    said = "deadlock: rank 0 waits in barrier #1 of the default group, rank 2 has ended"
    assert said in flat(finished["test_deadlock"].text)
    assert beta.finish(30).returncode == 1
    assert cluster.survivors_after(3) == []


def test_a_network_that_loses_everything_is_a_lost_machine_and_stays_so(
    cluster: Cluster, switch: Switch, suite: Suite
) -> None:
    """The machine stays lost when its network comes back: nobody knows what it did meanwhile."""
    alpha, beta = begun(cluster, suite)
    with switch.losing(1.0):
        time.sleep(7)
    finished = alpha.finish(180)
    lost = "node 1 (beta) is lost: gave no sign of life for 5 s"
    assert lost in flat(finished["test_across_a_stall"].text)
    assert f"cannot run: {lost}" in flat(finished["test_after"].text)
    assert beta.finish(30).returncode == 1
    assert cluster.survivors_after(3) == []
