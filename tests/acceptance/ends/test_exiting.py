"""A rank ends as any Python process does, at the session's end and where it is retired."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.ends.exiting_examples import (
    AFTER_THE_ENDLESS,
    CONFTEST,
    ENDLESS,
    FOLDER,
    HELPERS,
    INSTALLED,
    INTERRUPTED,
    LEAVES,
    TROUBLES,
)
from tests.acceptance.suite import SPAWNED, Finished, Suite, flat

SPAWN = ("--ddp-start-method=spawn",) if SPAWNED else ()
SHM = Path("/dev/shm")
TRACKER_LIMIT = 10.0
"""Seconds that multiprocessing's resource tracker may outlive a plain pytest."""
START_LIMIT = 120.0
"""Seconds until the ranks of an inner test are at work, on a loaded machine."""
INI = "[pytest]\nasyncio_default_fixture_loop_scope = function\npythonpath = site-packages\n"


@dataclass(frozen=True)
class Left:
    """What the processes of an inner run have left."""

    finished: Finished
    files: dict[tuple[str, int], dict[str, str]]
    """Name and content by rank and pid; the rank is "none" in the process that reports."""

    @property
    def ranks(self) -> dict[tuple[str, int], dict[str, str]]:
        return {where: files for where, files in self.files.items() if where[0] != "none"}

    @property
    def reporter(self) -> tuple[int, dict[str, str]]:
        ((_, pid),) = self.files.keys() - self.ranks.keys()
        return pid, self.files["none", pid]

    def of(self, name: str) -> dict[str, str]:
        """The contents of all ranks' files of a name, by rank."""
        return {rank: files[name] for (rank, _), files in self.ranks.items() if name in files}

    def seconds(self, start: str, end: str) -> float:
        """What lies between two times that tests have written."""
        return max(map(float, self.of(end).values())) - min(map(float, self.of(start).values()))


def run(suite: Suite, *args: str, extra: tuple[str, ...]) -> Left:
    directory = suite.directory.with_name(f"{suite.directory.name}.{time.monotonic_ns()}")
    directory.mkdir()
    temporary = directory.with_name(f"{directory.name}-tmp")
    temporary.mkdir()
    env = {"LEFT": str(directory), "TMPDIR": str(temporary)}
    finished = suite.run(*args, env=env, extra=extra, timeout=90)
    return Left(finished, read(directory))


def read(directory: Path) -> dict[tuple[str, int], dict[str, str]]:
    """The files that processes have left, by rank and pid."""
    files: dict[tuple[str, int], dict[str, str]] = {}
    for file in directory.iterdir():
        name, rank, pid = file.name.split(".")
        files.setdefault((rank, int(pid)), {})[name] = _content(name, file)
    return files


def _content(name: str, file: Path) -> str:
    text = file.read_text()
    if name in ("memory", "directory"):
        # Of a temporary file the absolute path is shown, of shared memory the name.
        return "gone" if is_gone(SHM / text) else "still there"
    return text


def is_gone(path: Path) -> bool:
    """Whether a file is gone, now or soon: a plain pytest does not wait for the resource
    tracker."""
    deadline = time.monotonic() + TRACKER_LIMIT
    while path.exists() and path.is_relative_to(SHM) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not path.exists()


def write(suite: Suite, **tests: str) -> None:
    suite.write("pytest.ini", INI)
    suite.write("helpers.py", HELPERS)
    suite.write("conftest.py", CONFTEST)
    suite.write("site-packages/installed_party.py", INSTALLED)
    suite.write("site-packages/installed_folder.py", FOLDER)
    for name, source in tests.items():
        suite.write(f"test_{name}.py", source)


# ---------------------------------------------------------------- as any Python process

ENDS = (
    *("atexit", "atexit_of_conftest", "atexit_of_test", "installed", "weakref", "finalize"),
    *("logging", "text", "text_of_test", "binary", "updated"),
    *("directory", "memory", "executor", "companion", "daemon"),
)


@pytest.fixture(scope="module")
def leaving(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    write(suite, leaves=LEAVES)
    return suite


@pytest.fixture(scope="module")
def left(leaving: Suite) -> Left:
    return run(leaving, extra=SPAWN)


@pytest.fixture(scope="module")
def plain(leaving: Suite) -> Left:
    leaving.fresh = True  # a warm one does not destroy its objects when it ends
    left = run(leaving, "-p", "no:ddp", extra=())
    leaving.fresh = False
    return left


@pytest.mark.parametrize(
    "test", ["first", "isolated", "leaves_a_thread", "last", "folder_of_an_installed_package"]
)
def test_verdict(left: Left, test: str) -> None:
    assert left.finished[f"test_{test}"].verdict == "passed"


def test_nothing_is_reported_but_the_thread(left: Left) -> None:
    assert "outside of the tests" not in left.finished.output, left.finished.tail()
    (warning,) = left.finished.warnings
    assert "test_leaves_a_thread: left a thread" in warning


@pytest.mark.parametrize("name", ENDS)
def test_each_rank_ends_as_plain_pytest_does(left: Left, plain: Left, name: str) -> None:
    """The first ranks were retired for isolation, the second ones for a thread."""
    _, expected = plain.reporter
    assert [rank for rank, _ in sorted(left.ranks)] == ["0"] * 3 + ["1"] * 3
    found = [files.get(name, "missing") for files in left.ranks.values()]
    if name == "installed":
        assert "missing" not in found
    else:
        assert found == [expected[name]] * 6


def test_the_table_has_all_that_plain_pytest_left(plain: Left) -> None:
    plain.finished.assert_outcomes(passed=5)
    assert set(plain.reporter[1]) == set(ENDS)


def test_handlers_of_an_installed_package_run_in_ranks_and_not_in_their_host(left: Left) -> None:
    importers = {int(pid) for pid in left.of("installed").values()}
    ranks = {pid for _, pid in left.ranks}
    if SPAWNED:
        assert importers <= ranks
    else:
        assert len(importers) == 1
        assert not importers & (ranks | {left.reporter[0]})


# ---------------------------------------------------------------- handlers in trouble


@pytest.fixture(scope="module")
def troubles(new_suite: Callable[[], Suite]) -> Left:
    suite = new_suite()
    write(suite, a=TROUBLES, b=ENDLESS, c=AFTER_THE_ENDLESS)
    return run(suite, extra=SPAWN)


@pytest.fixture(scope="module")
def shown(troubles: Left) -> list[str]:
    """The sections at the end of the run, each from the names of its ranks on."""
    output = troubles.finished.stdout.partition("short test summary info")[0]
    return [flat(text) for text in output.split("ddp: error outside of the tests")[1:]]


def test_what_is_reported_fails_the_session_and_no_test(troubles: Left) -> None:
    troubles.finished.assert_outcomes(passed=10, failed=1)
    assert troubles.finished["test_is_killed"].verdict == "failed"


def test_handlers_that_raise_are_reported_in_a_line(suite: Suite) -> None:
    """A handler that raises is no reason for Python to fail, and so it is none for the plugin."""
    write(suite, a=TROUBLES)
    finished = run(suite, "-k", "raises", extra=SPAWN).finished
    finished.assert_outcomes(passed=1)
    assert finished.returncode == pytest.ExitCode.OK
    words = "raised at the end of the rank"
    for error in ("ValueError: cannot clean up, in broken", "KeyError: 'nothing', in broken_too"):
        assert f"{words}: {error}" in finished.warnings
        assert re.search(rf"test_a.py:\d+: DdpWarning: {words}: {error}", finished.stdout)


def test_a_handler_that_hangs_is_reported_with_its_line(troubles: Left, shown: list[str]) -> None:
    source = (troubles.finished.directory / "test_a.py").read_text().splitlines()
    line = 1 + next(n for n, text in enumerate(source) if "# here it hangs" in text)
    (text,) = (text for text in shown if "hanging" in text)
    assert "rank 1 The rank was killed: its last teardown took longer than 10 s" in text
    assert f"test_a.py:{line} in hanging" in text
    assert troubles.seconds("ended_hangs", "began_after_the_hang") >= 10


def test_a_handler_that_exits_is_reported(shown: list[str]) -> None:
    (text,) = (text for text in shown if "exited with code 5" in text)
    assert "rank 0 The rank exited" in text


def test_an_endless_thread_of_a_test_is_reported_with_the_test_alone(
    troubles: Left, shown: list[str]
) -> None:
    (warning,) = (text for text in troubles.finished.warnings if "stray" in text)
    assert "test_leaves_a_thread: left a thread ('stray') behind; the rank" in warning
    assert not any("stray" in text for text in shown)


def test_an_endless_thread_of_a_module_is_reported_with_its_line(
    troubles: Left, shown: list[str]
) -> None:
    (text,) = (text for text in shown if "'endless'" in text)
    assert "ranks 0-1 The thread 'endless' would not end with the rank" in text
    assert "# here it stays" in text


def test_nothing_else_is_reported(shown: list[str]) -> None:
    """A handler that destroys a group or prints is no trouble."""
    assert len(shown) == 3, shown


@pytest.mark.parametrize("when", ["first", "last"])
def test_other_handlers_run_beside_those_in_trouble(troubles: Left, when: str) -> None:
    """Handlers run that were registered before those in trouble, and after."""
    tests = re.findall(r"def test_(\w+)", TROUBLES)
    found = {test: sorted(troubles.of(f"{when}_of_{test}")) for test in tests}
    expected = {test: ["0", "1"] for test in tests}
    expected["is_killed"] = ["0"]
    if when == "first":
        expected |= {"hangs": ["0"], "exits_in_a_handler": ["1"]}
    assert found == expected


# ---------------------------------------------------------------- Ctrl-C


@pytest.mark.parametrize("hangs", ["", "yes"], ids=["quick", "hanging"])
def test_handlers_after_an_interrupt(suite: Suite, hangs: str) -> None:
    directory = suite.directory.with_name("left")
    directory.mkdir()
    write(suite, it=INTERRUPTED)
    running = suite.start(env={"LEFT": str(directory), "HANGS": hangs}, extra=SPAWN)
    deadline = time.monotonic() + START_LIMIT
    while len(list(directory.glob("asleep.*"))) < 3:
        assert time.monotonic() < deadline, running.stdout
        assert running.process.poll() is None, running.stdout
        time.sleep(0.05)
    running.process.send_signal(signal.SIGINT)
    finished = running.finish(START_LIMIT)
    assert finished.returncode == pytest.ExitCode.INTERRUPTED
    assert "outside of the tests" not in finished.output
    ran = [rank for (rank, _), files in read(directory).items() if "handler" in files]
    assert sorted(ran) == ["0", "0", "1", "1", "2"]
