"""A suite made from a seed: its files, pytest's arguments, the truth, and who is to be killed."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from tests.acceptance.ends.deaths import DEFINITIONS
from tests.chaos.case import Draw
from tests.chaos.files import Expected, Writer
from tests.chaos.helpers import HELPERS, WIDE, wide_fixture

TARGETS = {
    "pytest": (signal.SIGKILL, signal.SIGTERM, signal.SIGINT),
    "host": (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV),
    "rank": (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT),
}
"""Who is killed from outside, and by which signals."""

TESTS = 16
"""About how many tests are in a suite: fewer cost more each, since a host's start takes seconds."""
KILLS = 0.25
"""Signals from outside for each suite, on average."""
MOMENTS = ("start", "collection", "tests")
"""When signals are sent, in the order of a run: the last ones after so many tests."""
ALL_MOMENTS = (*MOMENTS, "tests", "last", "end")
"""What is drawn from: the end is short, and met seldom by a number of tests."""
DEADLINE = 60
"""Seconds for a test whose verdict can come at once, or is legal."""


@dataclass(frozen=True)
class Kill:
    """A signal from outside."""

    target: str
    sign: signal.Signals
    moment: str
    after: int
    """Tests that have been reported to the end of their teardown before; all of them at most."""
    delay: float
    """Seconds after these tests, or after the other moments."""

    def __str__(self) -> str:
        moment = self.moment if self.moment != "tests" else f"{self.after} tests"
        return f"{self.sign.name} to {self.target}, {self.delay} s after {moment}"


@dataclass(frozen=True)
class Plan:
    """All of a suite."""

    seed: int
    files: dict[str, str]
    args: tuple[str, ...]
    expected: tuple[Expected, ...]
    """The expected tests in the order of collection, without what ``-k`` leaves out."""
    maxfail: int
    """0 for no limit."""
    kills: tuple[Kill, ...]
    """The kills in the order in which they come."""
    spares_ranks: bool
    """True if no rank ends without the teardown of its fixtures."""

    @property
    def under_xdist(self) -> bool:
        return "-n" in self.args


def plan(seed: int, *, kills: float = KILLS, tests: int = TESTS) -> Plan:
    """The suite of a seed.

    Args:
        kills: signals from outside, on average: 0.25 is one for a quarter of the seeds.
        tests: about how many inner tests.
    """
    draw = Draw(seed)
    xdist = _xdist(draw)
    wide = draw.some(WIDE, draw.one([0, 0, 1, 2]))
    session = {f"of_session_{use}": use for use in wide}
    writer = Writer(draw, xdist=xdist, wide=tuple(session))
    folder = "t0/" if draw.chance(0.4) else ""
    files = {"helpers.py": HELPERS + DEFINITIONS, "conftest.py": _conftest("session", session)}
    if folder:
        package = {f"of_package_{use}": use for use in draw.some(WIDE, 1)}
        files["t0/__init__.py"] = ""
        files["t0/conftest.py"] = _conftest("package", package)
        files["t0/test_0.py"] = writer.file("t0/test_0.py", tests // 2, tuple(package))
    files["test_1.py"] = writer.file("test_1.py", tests // 2 if folder else tests)
    args, maxfail = _limits(draw, xdist)
    chosen = [e for e in writer.expected if "-k" not in args or "good" in e.nodeid]
    return Plan(
        seed=seed,
        files=files,
        args=(*args, *_options(draw), f"--ddp-timeout={DEADLINE}"),
        expected=tuple(chosen),
        maxfail=maxfail,
        kills=_kills(draw, int(kills) + draw.chance(kills % 1), len(chosen)),
        spares_ranks=writer.spares_ranks,
    )


def _conftest(scope: str, fixtures: dict[str, str]) -> str:
    sources = [wide_fixture(name, scope, use) for name, use in fixtures.items()]
    return "\n\n".join(["from helpers import *", *sources])


def _xdist(draw: Draw) -> tuple[str, ...]:
    return draw.one([*[()] * 8, ("-n", "2"), ("-n", "2", "--dist=loadfile")])


def _options(draw: Draw) -> tuple[str, ...]:
    """Options of the plugin under which all truths stay the same."""
    return draw.one([*[()] * 12, ("--ddp-import=host",), ("--ddp-isolate",), ("--ddp-output=all",)])


def _limits(draw: Draw, xdist: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
    """Arguments of pytest, and the number of failures after which it stops."""
    if draw.chance(0.05):
        return (*xdist, "-k", "good"), 0
    if xdist or draw.chance(0.85):
        return xdist, 0
    maxfail = draw.one([1, 2])
    return (("-x",) if maxfail == 1 else (f"--maxfail={maxfail}",)), maxfail


def _kills(draw: Draw, count: int, tests: int) -> tuple[Kill, ...]:
    """One at any moment, for anybody; the others leave tests to report and hosts to be struck."""
    found = [_kill(draw, draw.one(["host", "rank"]), ["tests"], tests) for _ in range(count - 1)]
    if count:
        found.append(_kill(draw, draw.one(TARGETS), ALL_MOMENTS, tests))
    return tuple(sorted(found, key=lambda kill: (MOMENTS.index(kill.moment), kill.after)))


def _kill(draw: Draw, target: str, moments: Sequence[str], tests: int) -> Kill:
    sign, delay = draw.one(TARGETS[target]), draw.between(0, draw.one([0.1, 0.5, 2]))
    moment = draw.one(moments)
    if moment in ("start", "collection"):
        return Kill(target, sign, moment, 0, delay)
    last = max(tests - 1, 0)
    after = {"tests": draw.one(range(last + 1)), "last": last, "end": tests}[moment]
    return Kill(target, sign, "tests", after, delay)
