"""Three machines: which rank is where, and what two can do without the third."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.extensions.machines import switch as switches
from tests.acceptance.extensions.machines.cluster import Cluster, Session, problem
from tests.acceptance.extensions.machines.switch import Switch
from tests.acceptance.suite import Suite, flat

EXAMPLES = """
    import os
    import signal
    import socket
    import time

    import pytest
    import torch
    import torch.distributed as dist


    def parent_of(pid):
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])


    def places(ddp):
        return ddp.gather((socket.gethostname(), os.environ["GROUP_RANK"]))


    @pytest.mark.ddp(world_size=3)
    def test_one_on_each(ddp):
        assert places(ddp) == [("alpha", "0"), ("beta", "1"), ("gamma", "2")]
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 3


    @pytest.mark.ddp(world_size=4)
    def test_as_even_as_it_goes(ddp):
        assert places(ddp) == [("alpha", "0"), ("alpha", "0"), ("beta", "1"), ("gamma", "2")]


    @pytest.mark.ddp(world_size=3, timeout=60)
    def test_the_third_is_killed(ddp):
        if ddp.rank == 2:
            time.sleep(1)  # machines report where their ranks are five times a second
            os.kill(parent_of(os.getppid()), signal.SIGKILL)
            signal.pause()
        dist.barrier()


    @pytest.mark.ddp(world_size=3)
    def test_that_needs_the_third(ddp): ...


    @pytest.mark.ddp(world_size=4, nodes=2)
    def test_the_two_others_go_on(ddp):
        assert [name for name, _ in places(ddp)] == ["alpha", "alpha", "beta", "beta"]
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 4
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if why := problem() or switches.problem():
        pytest.skip(why)
    with Cluster.up(3, Switch()) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def session(cluster: Cluster, new_suite: Callable[[], Suite]) -> Session:
    suite = new_suite()
    suite.write("test_examples.py", EXAMPLES)
    return cluster.run(suite, torchrun=True)


def test_verdicts(session: Session) -> None:
    verdicts = {name.rpartition(":")[2]: r.verdict for name, r in session.alpha.results.items()}
    assert verdicts == {
        "test_one_on_each": "passed",
        "test_as_even_as_it_goes": "passed",
        "test_the_third_is_killed": "failed",
        "test_that_needs_the_third": "error",
        "test_the_two_others_go_on": "passed",
    }, session.text


def test_the_lost_third_is_named(session: Session) -> None:
    text = flat(session.alpha["test_the_third_is_killed"].text)
    assert "went with its machine: node 2 (gamma) is lost: connection" in text
    assert "rank 0 on node 0 (alpha), rank 1 on node 1 (beta), rank 2 on node 2 (gamma)." in text
    later = flat(session.alpha["test_that_needs_the_third"].text)
    assert "cannot run: node 2 (gamma) is lost: connection" in later


def test_all_end_and_leave_nothing(cluster: Cluster, session: Session) -> None:
    beta, gamma = session.agents
    assert session.alpha.returncode == beta.returncode == 1, session.text
    assert gamma.returncode != 0
    assert cluster.survivors_after(3) == []
