"""A rank's process serves one world; wide fixtures end with its whole pool, wherever that is."""

from __future__ import annotations

import json
import signal
import textwrap
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from tests.acceptance.pools.pool_examples import (
    BOUNDED,
    CONFTEST,
    CRASH,
    ENV,
    FIRST,
    INTERRUPTED,
    NO_GROUP,
    PACKAGE,
    PREAMBLE,
    SECOND,
    SINGLETON,
    THIRD,
    WIDE,
)
from tests.acceptance.suite import LOADFILE, SPAWNED, Finished, Running, Suite

IDLE_LIMIT = 16
"""How many ranks may wait in the pools of other worlds."""
START_LIMIT = 120.0
"""Seconds until the ranks of an inner test are at work, on a loaded machine."""
SPAWN = ("--ddp-start-method=spawn",) if SPAWNED else ()

# ---------------------------------------------------------------- what a run logs


@dataclass(frozen=True)
class Event:
    """One line of the log: a wide fixture is up or down, or a test runs."""

    event: str
    what: str
    pid: int
    peers: tuple[int, ...] = ()
    """The processes of all ranks of a test."""
    needs: tuple[str, ...] = ()
    """The wide fixtures of a test."""


@dataclass(frozen=True)
class Log:
    """What the ranks of a run wrote."""

    path: Path

    @cached_property
    def events(self) -> list[Event]:
        lines = map(json.loads, self.path.read_text().splitlines())
        return [Event(*start, *map(tuple, lists)) for *start, lists in map(_parted, lines)]

    @cached_property
    def pools(self) -> set[tuple[int, ...]]:
        """All that ever ran a test, as their processes by rank."""
        return {event.peers for event in self.events if event.event == "ran"}

    def pids(self, test: str) -> tuple[int, ...]:
        """The processes that ran a test, by rank."""
        found = {e.peers for e in self.events if (e.event, e.what) == ("ran", test)}
        assert len(found) == 1, f"{test} ran on {found or 'no ranks'}"
        return found.pop()

    def of(self, pid: int, *kinds: str) -> list[Event]:
        """What a process has logged."""
        return [event for event in self.events if event.pid == pid and event.event in kinds]

    def check(self, *, but: Collection[int] = ()) -> None:
        """Each wide fixture went up and down once on each rank that needs it, in step.

        Args:
            but: processes that died; their peers could not go down either.

        Raises:
            AssertionError: one did not.
        """
        whole = [pool for pool in self.pools if not {*pool} & {*but}]
        for pool in whole:
            first, *others = (
                [f"{e.event} {e.what}" for e in self.of(pid, "up", "down")] for pid in pool
            )
            assert others == [first] * len(others)
            needed = {need for event in self.of(pool[0], "ran") for need in event.needs}
            assert sorted(first) == sorted(f"{w} {need}" for need in needed for w in ("up", "down"))
            for scope in ("class", "module", "package", "session"):
                turns = [line.split()[0] for line in first if line.split()[1] == scope]
                assert turns == ["up", "down"] * (len(turns) // 2), first
        assert whole


def _parted(line: list[object]) -> list[object]:
    return [*line[:3], line[3:]]


def new_log(suite: Suite) -> Log:
    """A log for a run on a suite, which is given the fixtures that write it."""
    path = suite.directory.with_name(f"{suite.directory.name}.{time.monotonic_ns()}")
    path.touch()
    suite.write("wide.py", WIDE)
    suite.write("conftest.py", CONFTEST)
    return Log(path)


# ---------------------------------------------------------------- life


@pytest.fixture(scope="module")
def life(new_suite: Callable[[], Suite]) -> tuple[Finished, Log]:
    suite = new_suite()
    log = new_log(suite)
    sources = {"singleton": SINGLETON, "env": ENV, "no_group": NO_GROUP, "crash": CRASH}
    # Other files would end its pools otherwise, or have more of them live.
    for name, source in [*sources.items(), ("the_bound", BOUNDED)]:
        suite.write(f"test_{name}.py", textwrap.dedent(PREAMBLE) + textwrap.dedent(source))
    return suite.run(*LOADFILE, env={"LOG": str(log.path)}, timeout=120), log


def test_verdicts(life: tuple[Finished, Log]) -> None:
    life[0].assert_outcomes(passed=29, failed=1, error=1)
    assert life[0]["test_crash"].verdict == "failed+error"  # the class cannot be torn down


def test_wide_fixtures_are_up_once_on_each_rank(life: tuple[Finished, Log]) -> None:
    log = life[1]
    log.check(but=log.pids("test_crash"))


def test_a_pool_comes_back(life: tuple[Finished, Log]) -> None:
    one, two, four, two_again, one_again, three = (
        life[1].pids(f"test_state[{turn}]") for turn in range(6)
    )
    assert (two_again, one_again) == (two, one)
    assert len({*one, *two, *three, *four}) == 10


def test_a_setting_of_the_mark_makes_no_pool(life: tuple[Finished, Log]) -> None:
    tests = ("test_with_setting", "test_without_setting", "test_other_setting")
    assert len({life[1].pids(test) for test in tests}) == 1


def test_tests_without_a_group_have_their_own_pool(life: tuple[Finished, Log]) -> None:
    pools = [life[1].pids(f"test_group[{turn}]") for turn in range(6)]
    assert pools == pools[:2] * 3
    assert not {*pools[0]} & {*pools[1]}


def test_a_crash_ends_its_own_pool_alone(life: tuple[Finished, Log]) -> None:
    two, three, crash, two_after, three_after = map(
        life[1].pids,
        ("test_before[0]", "test_before[1]", "test_crash", "test_after[0]", "test_after[1]"),
    )
    assert crash == two
    assert not {*two} & {*two_after}, "their session fixture was up"
    assert three == three_after


def test_few_ranks_are_idle(life: tuple[Finished, Log]) -> None:
    _, log = life
    living = {e.what: set(e.peers) for e in log.events if e.event == "living"}
    assert len(living) == 8
    for turn in range(8):
        used = log.pids(f"test_first[{turn}]")
        idle = living[f"test_first[{turn}]"].difference(used)
        assert len(idle) <= IDLE_LIMIT
        if turn:  # the one before this stays
            assert idle.issuperset(log.pids(f"test_first[{turn - 1}]"))


def test_a_pool_that_was_ended_begins_anew(life: tuple[Finished, Log]) -> None:
    """What was up in it came down: see the test of wide fixtures."""
    for turn in range(2):
        first, second = (life[1].pids(f"test_{when}[{turn}]") for when in ("first", "second"))
        assert not {*first} & {*second}


# ---------------------------------------------------------------- ends of wide fixtures


@pytest.fixture(scope="module")
def places(new_suite: Callable[[], Suite]) -> Suite:
    """A suite in whose files the pools begin and end at different tests."""
    suite = new_suite()
    for package, files in {"one": (FIRST, SECOND), "two": (THIRD,)}.items():
        suite.write(f"{package}/__init__.py", "")
        suite.write(f"{package}/conftest.py", PACKAGE)
        for number, source in enumerate(files):
            source = textwrap.dedent(PREAMBLE) + textwrap.dedent(source)
            suite.write(f"{package}/test_{number}.py", source)
    return suite


@pytest.mark.parametrize(
    ("args", "passed"),
    [
        ((), 14),
        (("-k", "test_b or fresh"), 5),
        (("-n", "2"), 14),
    ],
    ids=["all", "some", "xdist"],
)
def test_ends_in_pools(places: Suite, args: tuple[str, ...], passed: int) -> None:
    log = new_log(places)
    finished = places.run(*args, env={"LOG": str(log.path)}, extra=SPAWN)
    finished.assert_outcomes(passed=passed)
    assert finished.returncode == 0, finished.tail()
    log.check()


def test_ends_of_failed_tests_again(places: Suite) -> None:
    """The second run has fewer tests, of the same pools."""
    cached = ("-p", "cacheprovider")
    for fail, args, counts in (
        ("1", (), {"passed": 12, "failed": 2}),
        ("", ("--lf",), {"passed": 2}),
    ):
        log = new_log(places)
        finished = places.run(*cached, *args, env={"LOG": str(log.path), "FAIL": fail}, extra=SPAWN)
        finished.assert_outcomes(**counts)
        log.check()


@pytest.fixture
def interrupted(suite: Suite) -> Callable[[str], tuple[Running, Log]]:
    """Starts a run whose second pool is interrupted, while the first one is idle."""

    def start(deed: str) -> tuple[Running, Log]:
        log = new_log(suite)
        source = textwrap.dedent(PREAMBLE) + textwrap.dedent(INTERRUPTED).replace("DEED", deed)
        suite.write("test_it.py", source)
        return suite.start(env={"LOG": str(log.path)}, extra=SPAWN), log

    return start


@pytest.mark.parametrize("who", ["ddp.rank == 1", "True"], ids=["one", "all"])
def test_ends_after_an_exit_in_a_rank(
    interrupted: Callable[[str], tuple[Running, Log]], who: str
) -> None:
    running, log = interrupted(f"if {who}: pytest.exit('enough', returncode=1)")
    finished = running.finish(START_LIMIT)
    finished.assert_outcomes(passed=2)
    assert finished.returncode == 1
    assert "outside of the tests" not in finished.output
    log.check()


def test_ends_after_an_interrupt(interrupted: Callable[[str], tuple[Running, Log]]) -> None:
    running, log = interrupted("note('asleep', '', []); time.sleep(600)")
    deadline = time.monotonic() + START_LIMIT
    while log.path.read_text().count("asleep") < 2:
        assert time.monotonic() < deadline, running.stdout
        assert running.process.poll() is None, running.stdout
        time.sleep(0.05)
    running.process.send_signal(signal.SIGINT)
    finished = running.finish(START_LIMIT)
    assert finished.returncode == pytest.ExitCode.INTERRUPTED
    log.check()
