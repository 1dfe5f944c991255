"""Parses the lines that a rank wrote into its phases and collectives.

Pure. All times are nanoseconds since the test began. The text may break off anywhere: the rank may
have been killed between two lines, or within one.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_ddp.system.own import json
from pytest_ddp.wire.tracelog import What


class State(enum.Enum):
    """The state of a collective; the value completes "the collective ..."."""

    DONE = "is complete"
    FAILED = "failed"
    PENDING = "is not complete"
    UNAWAITED = "was never waited for"
    """It may be complete or not."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a rank, inside those of smaller depth."""

    name: str
    depth: int
    """0 for setup, call and teardown."""
    begin: int
    end: int
    site: str = ""
    """``file:line`` that began it; empty for pytest's own phases."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective, a send or a receive of a rank."""

    operation: str
    group: str
    number: int
    """Number of the collective on its group in this test, from 1; 0 for a message."""
    begin: int
    end: int
    state: State
    elements: int | None = None
    """Of the tensors that the rank passed as input, or as output to be filled."""
    dtype: str | None = None
    reduce_op: str | None = None
    root: int | None = None
    """Source or destination in the group; the peer of a message."""
    site: str = ""
    """``file:line`` of the call; empty if C++ issued it."""
    error: str = ""
    """Name of the exception that ended the wait for it."""

    @property
    def by_python(self) -> bool:
        """False for a collective that C++ issued, whose end the recorder does not know."""
        return bool(self.site)


@dataclass(frozen=True, slots=True)
class Events:
    """All events of one rank in one test."""

    phases: tuple[Phase, ...] = ()
    collectives: tuple[Collective, ...] = ()
    truncated: bool = False
    """Whether the rank's file was full."""


def parse(text: str, began: int, until: int) -> Events:
    """Parse the file of a rank.

    Args:
        text: its lines.
        began: when the test began, in nanoseconds on the monotonic clock.
        until: when the rank ended its part, in nanoseconds since then.
    """
    reader = _Reader(began, until)
    for line in _lines(text):
        reader.take(*line)
    return reader.events()


def _lines(text: str) -> Iterator[list[Any]]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # the unfinished last line of a rank that was killed
            return


@dataclass
class _Reader:
    began: int
    until: int
    open: list[Phase] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    before: dict[str, int] = field(default_factory=dict)
    unawaited: dict[int, Collective] = field(default_factory=dict)
    collectives: list[Collective] = field(default_factory=list)
    recorded: dict[int, Collective] = field(default_factory=dict)
    truncated: bool = False

    def take(self, what: str, at: int, *details: Any) -> None:
        now = at - self.began
        match What(what):
            case What.PHASE:
                self._phase(now, *details)
            case What.LEFT:
                self._close(details[0], now)
            case What.GROUP:
                self.before[details[0]] = details[1]
            case What.CALL:
                self._call(now, *details)
            case What.WAITED:
                self._waited(now, *details)
            case What.RECORDED:
                self._record(*details)
            case What.FULL:
                self.truncated = True

    def _phase(self, now: int, depth: int, name: str, site: str) -> None:
        # The setup of the group and that of the test are shown as one setup.
        goes_on = depth == 0 and self.open[:1] != [] and self.open[0].name == name
        self._close(1 if goes_on else depth, now)
        if not goes_on:
            self.open.append(Phase(name, depth, now, self.until, site))

    def _close(self, depth: int, now: int) -> None:
        while len(self.open) > depth:
            self.phases.append(replace(self.open.pop(), end=now))

    def _call(self, now: int, key: int, group: str, number: int, *details: Any) -> None:
        operation, elements, dtype, reduce_op, root, site = details
        # A key that is used again: nothing waited for the older call.
        if (older := self.unawaited.pop(key, None)) is not None:
            self.collectives.append(older)
        self.unawaited[key] = Collective(
            operation=operation,
            group=group,
            number=self._in_test(group, number),
            begin=now,
            end=self.until,
            state=State.UNAWAITED,
            elements=elements,
            dtype=dtype,
            reduce_op=reduce_op,
            root=root,
            site=site,
        )

    def _in_test(self, group: str, number: int) -> int:
        """The number within the test of a collective with this number since the group's begin."""
        return number - self.before.get(group, 0) if number else 0

    def _waited(self, now: int, key: int, error: str | None) -> None:
        if (call := self.unawaited.pop(key, None)) is not None:
            state = State.FAILED if error else State.DONE
            self.collectives.append(replace(call, end=now, state=state, error=error or ""))

    def _record(self, record: int, group: str, number: int, *details: Any) -> None:
        operation, elements, dtype, begin, complete = details
        self.recorded[record] = Collective(
            operation=operation,
            group=group,
            number=self._in_test(group, number),
            begin=begin - self.began,
            end=self.until,
            state=State.DONE if complete else State.PENDING,
            elements=elements,
            dtype=dtype,
        )

    def events(self) -> Events:
        # ``until`` is from the controller's clock. The offset of another machine's clock is not
        # exact to the microsecond, so a phase may seem to begin after it.
        still_open = (replace(phase, end=max(phase.begin, phase.end)) for phase in self.open)
        phases = sorted([*self.phases, *still_open], key=lambda p: (p.begin, p.depth))
        issued = (_ended_with_phase(call, phases) for call in self.recorded.values())
        calls = [*self.collectives, *self.unawaited.values(), *issued]
        calls.sort(key=lambda call: (call.begin, call.number))
        return Events(tuple(phases), tuple(calls), self.truncated)


def _ended_with_phase(call: Collective, phases: list[Phase]) -> Collective:
    """End a complete collective of C++ with the innermost phase around its begin.

    gloo's records have no time of completion, but DDP waits for its gradients before backward
    returns, and for its broadcasts before the constructor returns.
    """
    if call.state is not State.DONE:
        return call
    around = [phase for phase in phases if phase.begin <= call.begin <= phase.end]
    return replace(call, end=max(around, key=lambda p: p.depth).end) if around else call
