"""The test files of a suite, and what is known of the tests in them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tests.chaos.case import PASSED, Case, Draw, with_teardown
from tests.chaos.helpers import WIDE, wide_fixture
from tests.chaos.kinds.classes import faulty_class
from tests.chaos.kinds.deaths import DEATHS
from tests.chaos.kinds.failures import FAILURES, pytest_exit
from tests.chaos.kinds.good import GOOD, sound
from tests.chaos.kinds.hangs import HANGS
from tests.chaos.kinds.leftovers import LEFTOVERS

SHAPES = ("function", "function", "function", "method", "parameters", "sizes")


@dataclass(frozen=True)
class Expected:
    """What is known of one inner test."""

    nodeid: str
    kind: str
    truth: frozenset[str]
    stops: bool = False
    until_the_deadline: bool = False
    """Whether the test may last until its time is over; what can be proved must not."""


class Writer:
    """Writes test files, and remembers what their tests are to become."""

    def __init__(self, draw: Draw, *, xdist: tuple[str, ...], wide: tuple[str, ...]) -> None:
        self.expected: list[Expected] = []
        self.spares_ranks = True
        self._draw = draw
        self._xdist = xdist
        self._wide = wide
        self._in_order = not xdist or "--dist=loadfile" in xdist
        """Whether the tests of a file run in one process, one after the other."""
        self._has_wide = self._has_thread = False
        self._calm = draw.chance(0.15)
        self._faults = draw.some((FAILURES, DEATHS, HANGS, LEFTOVERS), draw.one([1, 4, 4]))
        """Some suites have one kind of faults only."""

    def file(self, path: str, tests: int, wide: tuple[str, ...] = ()) -> str:
        """The source of a file of about so many tests, some of which use wide fixtures."""
        draw = self._draw
        blocks, fixtures = ["from helpers import *"], [*self._wide, *wide]
        self._has_wide = bool(fixtures)
        if draw.chance(0.3):
            use = draw.one(WIDE)
            fixtures.append(f"of_module_{use}")
            blocks.append(wide_fixture(fixtures[-1], "module", use))
            self._has_wide = True
        self._has_thread = any(fixture.endswith("_thread") for fixture in fixtures)
        for number, case in enumerate(self._cases(tests)):
            self.spares_ranks = self.spares_ranks and case.spares_ranks
            used = [] if "init" in case.mark else [f for f in fixtures if draw.chance(0.6)]
            name = f"{'good' if case.kind.startswith('good') else 'fault'}_{number}"
            blocks.append(case.fixture(name) + self._test(path, name, case, used))
        if draw.chance(0.25) and not self._calm and self._in_order:
            source, kind, truths = faulty_class(draw)
            self.spares_ranks = False
            blocks.append(source)
            for test, truth in truths.items():
                nodeid, late = f"{path}::TestClass::{test}", "timeout" in kind
                self.expected.append(Expected(nodeid, kind, truth, until_the_deadline=late))
        return "\n\n\n".join(blocks) + "\n"

    def _cases(self, tests: int) -> Iterator[Case]:
        """Faults, with a test after most of them that looks for what they have left."""
        draw = self._draw
        for _ in range(tests // 2):
            fault = None if self._calm else self._fault()
            if fault is not None:
                yield fault
            if fault is not None and draw.chance(0.8):
                yield sound(draw, fault.world_size)
            if fault is None or draw.chance(0.3):
                yield self._drawn(lambda: draw.one(GOOD)(draw, draw.size()))

    def _drawn(self, draw_case: Callable[[], Case]) -> Case:
        """One that does not take from wide fixtures what they end with."""
        case = draw_case()
        while case.ends_group and self._has_wide:
            case = draw_case()
        return case

    def _fault(self) -> Case:
        draw = self._draw
        if not self._xdist and draw.chance(0.01):
            return pytest_exit(draw)
        case = self._drawn(lambda: draw.one(draw.one(self._faults))(draw))
        isolate = draw.chance(0.1) and not case.mark
        return replace(case, mark={"isolate": True}) if isolate else case

    def _test(self, path: str, name: str, case: Case, used: list[str]) -> str:
        """The test as a function, in a class, with parameters, or of several world sizes."""
        shape = self._draw.one(SHAPES)
        if shape == "method":
            self._expect(f"{path}::Test_{name}::test_{name}", case)
            method = textwrap.indent(case.test(name, wide=used, method=True), "    ")
            return f"class Test_{name}:\n{method}"
        if shape == "parameters" and case.truth == PASSED:
            mark = "pytest.mark.parametrize('number', [1, 2])"
            case = replace(case, decorators=(mark, *case.decorators), wants=("number", *case.wants))
            ids = ["[1]", "[2]"]
        elif shape == "sizes" and case.kind.startswith("good"):
            sizes = self._draw.some([1, 2, 3, 4], 2)
            case = replace(case, mark={**case.mark, "world_size": sizes})
            ids = [f"[ws{size}]" for size in sizes]
        else:
            ids = [""]
        for suffix in ids:
            self._expect(f"{path}::test_{name}{suffix}", case)
        return case.test(name, wide=used)

    def _expect(self, nodeid: str, case: Case) -> None:
        # A thread of a wide fixture might be about to communicate: little is proved beside it.
        late = "timeout" in case.mark or (self._has_thread and case.kind.startswith("deadlock"))
        truth = with_teardown(case.truth) if case.fails and self._has_wide else case.truth
        self.expected.append(Expected(nodeid, case.kind, truth, case.stops, late))
