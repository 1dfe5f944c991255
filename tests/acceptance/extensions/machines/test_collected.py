"""Tests that one machine collects and another does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.extensions.machines.cluster import Cluster, Session
from tests.acceptance.suite import Suite, flat

BY_MACHINE = """
    import socket

    import pytest

    pytestmark = pytest.mark.ddp(world_size=4)


    @pytest.mark.parametrize("where", [socket.gethostname(), "everywhere"])
    def test_parametrized(ddp, where):
        ddp.barrier()


    if socket.gethostname() == "alpha":

        def test_of_alpha(ddp): ...


    @pytest.mark.ddp(world_size=2, nodes=1)
    @pytest.mark.parametrize("where", [socket.gethostname()])
    def test_on_one(ddp, where): ...
"""
IMPORTS = """
    import socket

    import pytest

    if socket.gethostname() != "alpha":
        import a_package_of_alpha


    @pytest.mark.ddp(world_size=4)
    def test_imports(ddp): ...
"""


@pytest.fixture(scope="module")
def session(cluster: Cluster, new_suite: Callable[[], Suite]) -> Session:
    suite = new_suite()
    suite.write("test_by_machine.py", BY_MACHINE)
    suite.write("test_imports.py", IMPORTS)
    return cluster.run(suite)


def test_each_has_its_verdict(session: Session) -> None:
    verdicts = {name.partition("::")[2]: r.verdict for name, r in session.alpha.results.items()}
    assert verdicts == {
        "test_parametrized[alpha]": "error",
        "test_parametrized[everywhere]": "passed",
        "test_of_alpha": "error",
        "test_on_one[alpha]": "passed",
        "test_imports": "error",
    }, session.text


def test_a_test_that_is_not_there_is_named_with_its_machine_and_what_is_there(
    session: Session,
) -> None:
    text = flat(session.alpha["test_parametrized[alpha]"].text)
    assert "ranks 2-3 could not begin: the rank collected 3 tests" in text
    assert "from test_by_machine.py, but not this one" in text
    assert (
        "Of the same function it has test_by_machine.py::test_parametrized[beta], "
        "test_by_machine.py::test_parametrized[everywhere]."
    ) in text
    assert "nothing that differs between them, such as host names and devices" in text
    assert "ranks 0-1 on node 0 (alpha), ranks 2-3 on node 1 (beta)." in text


def test_a_function_that_is_not_there_has_none_that_are_alike(session: Session) -> None:
    text = flat(session.alpha["test_of_alpha"].text)
    assert "ranks 2-3 could not begin: the rank collected 3 tests" in text
    assert "Of the same function" not in text


def test_a_file_that_a_machine_cannot_import_is_shown(session: Session) -> None:
    text = flat(session.alpha["test_imports"].text)
    assert "ranks 2-3 could not begin: its file could not be collected in the rank" in text
    assert "ModuleNotFoundError: No module named 'a_package_of_alpha'" in text
    assert "ranks 2-3 on node 1 (beta)." in text
