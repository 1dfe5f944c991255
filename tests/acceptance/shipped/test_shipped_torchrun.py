"""Under torchrun: the same command on both nodes, and one has the files."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.machines.cluster import Cluster, Session
from tests.acceptance.shipped.project import ARGUMENTS, variables, write
from tests.acceptance.shipped.verdicts import ShippedVerdicts
from tests.acceptance.suite import Finished, Suite


@pytest.fixture(scope="module")
def both(cluster: Cluster, new_suite: Callable[[], Suite]) -> Session:
    suite = write(new_suite())
    arguments = (*ARGUMENTS, "--ddp-trace=traces")
    return cluster.run(suite, *arguments, torchrun=True, hidden_1=True, env=variables(suite))


@pytest.fixture(scope="module")
def session(both: Session) -> Finished:
    return both.alpha


class TestVerdicts(ShippedVerdicts):
    """Those of ranks on two machines."""


def test_both_nodes_end_with_pytest_s_exit_code(both: Session) -> None:
    assert both.alpha.returncode == both.beta.returncode == 1, both.text


def test_nothing_is_left_of_it(cluster: Cluster, both: Session) -> None:
    assert both.alpha
    assert cluster.survivors_after(3) == []
    for name in ("alpha", "beta"):
        assert not list((cluster.folder / name).glob("pddp-*"))


def test_traces_have_node_0_s_paths(session: Finished) -> None:
    traces = [path.read_text() for path in (session.directory / "traces").glob("*test_stuck*")]
    assert any(f"{session.directory}/tests/test_files.py:" in trace for trace in traces)
    assert not [trace for trace in traces if "/shipped/" in trace]


def test_what_tests_write_there_stays_there(session: Finished) -> None:
    tests = session.directory / "tests"
    assert [path.name for path in tests.glob("written-*")] == ["written-0"]
