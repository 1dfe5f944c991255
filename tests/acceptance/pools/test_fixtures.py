"""Fixtures of every scope are set up and torn down once in each rank that uses them.

A rank is one of a world size: those of another one are other processes.

The inner suite writes down what happens, one file per process role, and the tests read
these histories: whatever way tests are selected, ordered and stopped, each history has
to be a well-nested sequence in which every wide fixture occurs once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.suite import LOADFILE, UNDER_XDIST, Finished, Suite

CONFTEST = """
    import os
    from pathlib import Path

    import pytest

    def place():
        known = os.environ
        return f"{known['RANK']}of{known['WORLD_SIZE']}" if "RANK" in known else None

    def note(event, role=None):
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        file = Path(os.environ["HISTORIES"], f"{worker} {role or place() or 'plain'}")
        with file.open("a") as stream:
            stream.write(event + "\\n")

    def counted(scope):
        @pytest.fixture(scope=scope, name=f"{scope}_thing")
        def thing(request):
            role, node = place(), request.node.nodeid or "."
            note(f"up {scope} {node}")
            yield scope
            assert place() == role, "a fixture ends on the rank that it began on"
            note(f"down {scope} {node}", role)
        return thing

    session_thing = counted("session")
    module_thing = counted("module")
    class_thing = counted("class")
    function_thing = counted("function")

    @pytest.fixture
    def happens(request, session_thing, module_thing, class_thing, function_thing):
        note(f"test {request.node.nodeid}")

    def fail_if_asked(request):
        assert os.environ.get("FAILING") != request.node.nodeid
"""

PACKAGE = """
    from conftest import counted

    package_thing = counted("package")
"""

FIRST = """
    import pytest
    from conftest import fail_if_asked, note

    def test_plain_before(function_thing):
        note("test plain")

    @pytest.mark.ddp(world_size=2)
    def test_one(happens):
        pass

    def test_plain_between(function_thing):
        note("test plain")

    @pytest.mark.ddp(world_size=2)
    class TestTogether:
        def test_two(self, happens, request):
            fail_if_asked(request)

        def test_plain_size(self, happens):
            pass

        @pytest.mark.ddp(world_size=1)
        def test_alone(self, happens):
            pass

    @pytest.mark.ddp(world_size=2)
    def test_last_of_first(happens):
        pass

    def test_plain_after(function_thing):
        note("test plain")
"""

PACKAGED = """
    import pytest
    from conftest import note

    pytestmark = pytest.mark.ddp(world_size={world_size})

    def test_{name}(package_thing, happens):
        pass

    @pytest.mark.parametrize("number", [1, 2])
    def test_last_of_{name}(package_thing, happens, number):
        pass
"""


@dataclass(frozen=True)
class History:
    """What one process role (a rank, or pytest itself) wrote down."""

    worker: str
    role: str
    events: tuple[tuple[str, str, str], ...]
    """(what, scope, node): what is "up", "down" or "test"; a test has no scope."""

    def tests(self) -> list[str]:
        return [node for what, _, node in self.events if what == "test"]

    def ups(self, *scopes: str) -> list[tuple[str, str]]:
        return [
            (scope, node) for what, scope, node in self.events if what == "up" and scope in scopes
        ]


@dataclass(frozen=True)
class Run:
    """An inner run with its histories."""

    finished: Finished
    histories: tuple[History, ...]
    failing: set[str]
    """Node ids of the tests that are to fail."""

    def ranks(self) -> tuple[History, ...]:
        return tuple(history for history in self.histories if history.role != "plain")

    def tests(self) -> Counter[tuple[str, str]]:
        """How often each rank ran each test, over all workers."""
        return Counter((history.role, node) for history in self.ranks() for node in history.tests())


def read(directory: Path) -> Iterator[History]:
    for file in sorted(directory.iterdir()):
        worker, role = file.name.split()
        events = []
        for line in file.read_text().splitlines():
            what, _, rest = line.partition(" ")
            scope, node = rest.split(" ", 1) if what != "test" else ("", rest)
            events.append((what, scope, node))
        yield History(worker, role, tuple(events))


def write(suite: Suite) -> Suite:
    suite.write("conftest.py", CONFTEST)
    suite.write("test_first.py", FIRST)
    suite.write("package/__init__.py", "")
    suite.write("package/conftest.py", PACKAGE)
    suite.write("package/test_second.py", PACKAGED.format(name="second", world_size=2))
    suite.write("package/test_third.py", PACKAGED.format(name="third", world_size=3))
    zero = PACKAGED.format(name="zero", world_size=1).replace("package_thing, ", "")
    suite.write("test_zero.py", zero)
    return suite


RUNS = {
    "everything": ((), ""),
    "deselected": (("-k", "not last and not after"), ""),
    "stopped": (("-x",), "test_first.py::TestTogether::test_two"),
    "one file at a time": (("package/test_third.py", "test_first.py"), ""),
}


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, new_suite: Callable[[], Suite]) -> Run:
    arguments, failing = RUNS[request.param]
    suite = write(new_suite())
    directory = suite.directory.parent / f"{suite.directory.name}-histories"
    directory.mkdir()
    env = {"HISTORIES": str(directory), "FAILING": failing}
    finished = suite.run(*arguments, *LOADFILE, env=env)
    return Run(finished, tuple(read(directory)), {failing} - {""})


def test_outcome(run: Run) -> None:
    failed = {name for name, result in run.finished.results.items() if result.verdict != "passed"}
    assert failed == run.failing, run.finished.tail()
    assert len(run.ranks()) >= 2


def test_each_rank_runs_its_tests_once(run: Run) -> None:
    tests = run.tests()
    assert tests
    assert set(tests.values()) == {1}
    ran = [name for name in run.finished.results if "plain_before" not in name]
    for nodeid in ran:
        ranks = {role for role, node in tests if node == nodeid}
        world_size = 1 if "alone" in nodeid or "zero" in nodeid else 3 if "third" in nodeid else 2
        plain = "plain_between" in nodeid or "plain_after" in nodeid
        world = {f"{rank}of{world_size}" for rank in range(world_size)}
        assert ranks == (set() if plain else world), nodeid


def test_fixtures_nest(run: Run) -> None:
    """Set-ups and teardowns close like brackets, and none stays open."""
    for history in run.histories:
        standing = []
        for what, scope, node in history.events:
            if what == "up":
                standing.append((scope, node))
            elif what == "down":
                assert standing.pop() == (scope, node), history
        assert standing == [], history


def test_wide_fixtures_are_set_up_once(run: Run) -> None:
    for history in run.ranks():
        ups = Counter(history.ups("session", "package", "module", "class"))
        assert ups, history
        assert set(ups.values()) == {1}, history


def test_function_fixtures_are_set_up_for_each_test(run: Run) -> None:
    for history in run.ranks():
        assert Counter(node for _, node in history.ups("function")) == Counter(history.tests())


def test_a_test_sees_its_own_fixtures_standing(run: Run) -> None:
    for history in run.ranks():
        standing: set[tuple[str, str]] = set()
        for what, scope, node in history.events:
            if what == "test":
                assert standing == expected_around(node), history
            elif what == "up":
                standing.add((scope, node))
            else:
                standing.remove((scope, node))


def expected_around(nodeid: str) -> set[tuple[str, str]]:
    """The fixtures that stand while a test runs: those of its own nodes and no others."""
    file = nodeid.partition("::")[0]
    holder = nodeid.rpartition("::")[0]
    around = {("session", "."), ("module", file), ("function", nodeid)}
    # A function outside a class has the class-scoped fixture to itself.
    around.add(("class", holder if holder != file else nodeid))
    if file.startswith("package/"):
        around.add(("package", "package"))
    return around


def test_the_controller_runs_no_fixture_of_a_ddp_test(run: Run) -> None:
    for history in run.histories:
        if history.role == "plain":
            assert history.ups("session", "package", "module", "class") == []
            assert set(history.tests()) <= {"plain"}


# ---------------------------------------------------------------- teardowns that fail

FAILING = """
    import pytest

    @pytest.fixture(scope="module")
    def brittle(request):
        yield
        raise RuntimeError(f"brittle module {request.node.name} broke")

    @pytest.mark.ddp(world_size=2)
    def test_uses(brittle):
        pass

    @pytest.mark.ddp(world_size=2)
    def test_last(brittle):
        pass

    def test_plain():
        pass
"""

LATE = """
    import pytest

    @pytest.fixture(scope="session")
    def brittle():
        yield
        raise RuntimeError("brittle session broke")

    @pytest.mark.ddp(world_size=2)
    def test_wide(brittle):
        pass

    @pytest.mark.ddp(world_size=1)
    def test_narrow():
        pass
"""


@pytest.fixture(scope="module")
def broken(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_failing.py", FAILING)
    suite.write("test_other.py", "import pytest\n@pytest.mark.ddp\ndef test_other(ddp): pass\n")
    return suite.run("-k", "not plain", *LOADFILE)


@pytest.mark.skipif(UNDER_XDIST, reason="a worker of xdist does not know its last test")
def test_failing_module_teardown_is_an_error_of_the_last_test(broken: Finished) -> None:
    assert broken["test_uses"].verdict == "passed"
    assert broken["test_last"].verdict == "passed+error"
    assert "brittle module test_failing.py broke" in broken["test_last"].phase("teardown").text
    assert broken["test_other"].verdict == "passed"


def test_failing_module_teardown_is_never_lost(broken: Finished) -> None:
    assert "brittle module test_failing.py broke" in broken.output
    assert broken.returncode == pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="module")
def late(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_late.py", LATE)
    return suite.run(*LOADFILE)


def test_session_teardown_failing_in_a_rank_is_never_lost(late: Finished) -> None:
    """The ranks have their last test before the session's last; both teardowns are shown, once."""
    assert late.returncode == pytest.ExitCode.TESTS_FAILED
    shown = re.findall("^(?:E +)?RuntimeError: brittle session broke$", late.output, re.M)
    assert len(shown) == 1, late.tail()
    assert "ranks 0-1" in late.output


@pytest.mark.skipif(UNDER_XDIST, reason="a worker of xdist does not know its last test")
def test_session_teardown_failing_in_a_rank_is_an_error_of_its_last_test(late: Finished) -> None:
    assert late["test_wide"].verdict == "passed+error"
    assert "ranks 0-1 of 2 failed in teardown" in late["test_wide"].text
    assert late["test_narrow"].verdict == "passed"
