"""GPUs of two machines are leased where they are, from whoever else runs tests there."""

from __future__ import annotations

import os
import signal
import textwrap
from pathlib import Path

import pytest

from tests.acceptance.devices.standins import CONFTEST, variables_for
from tests.acceptance.extensions.machines.cluster import ADDRESSES, NAMES, Cluster, wait_for
from tests.acceptance.suite import Running, Suite, flat

HOLDS = """
    import time
    from pathlib import Path

    import pytest


    @pytest.mark.ddp(device="cuda", backend="gloo", timeout=120, **{mark})
    def test_holds(ddp):
        if ddp.rank == 0:
            Path({begun!r}).touch()
        while not Path({end!r}).exists():
            time.sleep(0.05)
        time.sleep(1)
"""
WAITS = """
    import os
    from pathlib import Path

    import pytest

    all_gpus = pytest.mark.ddp(world_size=4, device="cuda", backend="gloo")


    @all_gpus
    @pytest.mark.ddp(timeout=3)
    def test_in_vain(ddp): ...


    @pytest.mark.ddp(world_size=1, device="cuda", backend="gloo")
    def test_others_are_free(ddp):
        assert ddp.device.index == 0


    def test_the_holder_ends():
        Path(os.environ["END"]).touch()


    @all_gpus
    def test_waits(ddp):
        ddp.barrier()
"""


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    return variables_for(tmp_path / "gpus", {"alpha": 2, "beta": 2})


def holding(tmp_path: Path, begun: Path, end: Path, **mark: int) -> Suite:
    """A suite with one test that keeps GPUs until there is a file."""
    folder = tmp_path / "holding"
    folder.mkdir()
    suite = Suite(folder)
    suite.write("conftest.py", CONFTEST)
    source = HOLDS.format(mark=mark, begun=str(begun), end=str(end))
    suite.write("test_holding.py", source)
    return suite


def holder_on_beta(
    cluster: Cluster, tmp_path: Path, variables: dict[str, str]
) -> tuple[Running, Path]:
    """A pytest of beta's own that has one of its GPUs, until there is a file."""
    begun, end = tmp_path / "begun", tmp_path / "end"
    other = cluster.start_alone(holding(tmp_path, begun, end, world_size=1), env=variables, node=1)
    wait_for(begun)
    return other, end


def test_who_holds_them_is_reported_with_the_machine(
    cluster: Cluster, suite: Suite, tmp_path: Path, variables: dict[str, str]
) -> None:
    other, end = holder_on_beta(cluster, tmp_path, variables)
    suite.write("conftest.py", CONFTEST)
    suite.write("test_waiting.py", WAITS)
    session = cluster.run(suite, env=variables | {"END": str(end)})
    other.finish(60).assert_outcomes(passed=1)
    verdicts = [result.verdict for result in session.alpha.results.values()]
    assert verdicts == ["error", "passed", "passed", "passed"], session.text
    shown = flat(session.alpha["test_in_vain"].text)
    assert "node 1 (beta): 2 GPUs did not come free within 3 s: tests of other pytest " in shown
    assert "GPU-beta-0 is held by process " in shown
    assert "(test_holding.py::test_holds) Wait until they have ended, or give the test a " in shown
    assert "GPU-alpha" not in shown
    assert cluster.survivors_after(3) == []


CLAIM = """
    import sys
    from pathlib import Path

    from pytest_ddp.launch import gpus

    name, folder, limit = sys.argv[1:]
    gpus.physical_gpus = lambda: tuple(gpus.Gpu(f"GPU-{name}-{n}") for n in range(2))
    try:
        with gpus.lease(2, Path(folder), limit=float(limit)):
            print("free")
    except gpus.LeaseError as error:
        print(error)
"""


def claimed(cluster: Cluster, node: int, limit: int = 0) -> str:
    """What a process of a machine hears that wants all of its GPUs."""
    folder = cluster.folder / NAMES[node] / f"pytest-ddp-gpus-{os.getuid()}"
    done = cluster.execute(node, textwrap.dedent(CLAIM), NAMES[node], str(folder), str(limit))
    assert done.returncode == 0, done.stderr
    return flat(done.stdout)


def test_a_session_that_is_killed_gives_back_what_it_has_on_all_machines(
    cluster: Cluster, tmp_path: Path, variables: dict[str, str]
) -> None:
    begun = tmp_path / "begun"
    suite = holding(tmp_path, begun, tmp_path / "never", world_size=4)
    alpha, beta = cluster.start(suite, env=variables)
    wait_for(begun)
    for node in range(2):
        who = "(test_holding.py::test_holds of pytest on alpha)"
        held = claimed(cluster, node)
        assert f"GPU-{NAMES[node]}-1 is held by process" in held
        assert who in held
    os.kill(alpha.pid, signal.SIGKILL)
    assert [claimed(cluster, node, 15) for node in range(2)] == ["free", "free"]
    for running in (alpha, beta):
        running.finish(30)


def test_an_agent_that_is_killed_gives_back_what_it_has(
    cluster: Cluster, tmp_path: Path, variables: dict[str, str]
) -> None:
    begun, end = tmp_path / "begun", tmp_path / "end"
    alpha, beta = cluster.start(holding(tmp_path, begun, end, world_size=4), env=variables)
    wait_for(begun)
    os.kill(beta.pid, signal.SIGKILL)
    assert claimed(cluster, 1, 15) == "free"
    finished = alpha.finish(60)
    beta.finish(30)
    assert "node 1 (beta) is lost" in flat(finished["test_holds"].text)
    assert claimed(cluster, 0, 15) == "free"


def test_ctrl_c_ends_a_wait_and_what_the_session_has_elsewhere(
    cluster: Cluster, suite: Suite, tmp_path: Path, variables: dict[str, str]
) -> None:
    other, end = holder_on_beta(cluster, tmp_path, variables)
    suite.write("conftest.py", CONFTEST)
    suite.write("test_waiting.py", WAITS.replace("timeout=3", "timeout=100"))
    alpha, beta = cluster.start(suite, env=variables | {"END": str(end)})
    # It has those of alpha, and stands in line for those of beta.
    note = cluster.folder / "beta" / f"pytest-ddp-gpus-{os.getuid()}" / "queue.holder"
    wait_for(note)
    assert "test_in_vain of pytest on alpha" in note.read_text()
    assert "GPU-alpha-0 is held" in claimed(cluster, 0)
    os.kill(alpha.pid, signal.SIGINT)
    assert alpha.finish(60).returncode == pytest.ExitCode.INTERRUPTED
    beta.finish(30)
    assert claimed(cluster, 0, 15) == "free"
    end.touch()
    other.finish(60).assert_outcomes(passed=1)
    assert claimed(cluster, 1, 15) == "free"


ALL = """
    import os
    import time
    from pathlib import Path

    import pytest


    def test_both_sessions_are_there():
        Path(os.environ["OURS"]).touch()
        while not Path(os.environ["THEIRS"]).exists():
            time.sleep(0.05)


    @pytest.mark.parametrize("number", range(6))
    @pytest.mark.ddp(world_size="gpus", device="cuda", backend="gloo", timeout=60)
    def test_all(ddp, number):
        time.sleep(0.3)
        assert ddp.gather(ddp.device.index) == [0, 1, 0, 1]
"""


def test_sessions_that_number_machines_otherwise_do_not_wait_for_each_other_for_ever(
    cluster: Cluster, suite: Suite, tmp_path: Path, variables: dict[str, str]
) -> None:
    suite.write("conftest.py", CONFTEST)
    suite.write("test_all.py", ALL)
    place = {"MASTER_ADDR": ADDRESSES[1], "MASTER_PORT": "29518"}
    reversed_ = {0: place | {"RANK": "1"}, 1: place | {"RANK": "0"}}
    here, there = {"OURS": str(tmp_path / "a")}, {"THEIRS": str(tmp_path / "b")}
    ours = cluster.start(suite, env={**variables, **here, **there})
    swapped = {"OURS": there["THEIRS"], "THEIRS": here["OURS"]}
    others = cluster.start(suite, env=variables | swapped, of=reversed_)[::-1]
    for pytest_, agent in (ours, others):
        pytest_.finish(180).assert_outcomes(passed=7)
        assert agent.finish(30).returncode == 0
