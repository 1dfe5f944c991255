"""What observes a rank: its phases, its process groups, and the reporter of both.

With ``--ddp-trace``, subclasses of these also write what they observe to a file. They are
subclasses so that a rank without a trace pays nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from pytest_ddp.protocol.host_messages import StartRank, World
from pytest_ddp.protocol.rank_status import CodeLine, Probe, RankStatus
from pytest_ddp.protocol.status_page import StatusPage
from pytest_ddp.protocol.trace_lines import TraceLine, TraceLog
from pytest_ddp.rank.groups.default_group import DefaultGroup
from pytest_ddp.rank.groups.journal import CallJournal
from pytest_ddp.rank.groups.side_channel import SideChannel
from pytest_ddp.rank.operations.operation import Issuer, Operation
from pytest_ddp.rank.operations.process import operations_of_process
from pytest_ddp.rank.operations.stream import Recorder
from pytest_ddp.rank.status.phase_stack import Anchor, PhaseStack
from pytest_ddp.rank.status.status_reporter import StatusReporter, operation_of
from pytest_ddp.system.stdlib import time

_PAUSE_FACTOR = 20
"""The recorder is read again after this many times the duration of the last read, which grows with
its contents: tracing then takes at most 5 per cent of the time."""


class Instruments(NamedTuple):
    """The set of instruments of one rank."""

    phase_stack: PhaseStack
    group: DefaultGroup
    side_channel: SideChannel
    status_reporter: StatusReporter
    page: StatusPage


def make(page_path: str, trace_path: str, start: StartRank) -> Instruments:
    """Make a rank's instruments, which write to these files."""
    page = StatusPage(page_path)
    if start.traces:
        return _make_traced(page, TraceLog(trace_path), start)
    journal = CallJournal(operations_of_process())
    phase_stack, group = PhaseStack(page), DefaultGroup(journal, start.world, start.rank)
    side_channel = SideChannel()
    status_reporter = StatusReporter(group, phase_stack, side_channel)
    return Instruments(phase_stack, group, side_channel, status_reporter, page)


def _make_traced(page: StatusPage, log: TraceLog, start: StartRank) -> Instruments:
    phase_stack, group = TracedPhaseStack(page, log), TracedGroup(log, start.world, start.rank)
    side_channel = SideChannel()
    status_reporter = TracedStatusReporter(group, phase_stack, side_channel, log)
    phase_stack.on_leave = status_reporter.glance
    return Instruments(phase_stack, group, side_channel, status_reporter, page)


class TracedPhaseStack(PhaseStack):
    """A phase stack that also writes the begin and the end of each phase to the trace."""

    def __init__(self, page: StatusPage, log: TraceLog) -> None:
        self._log = log
        self.on_leave: Callable[[], None] = lambda: None
        """Called when a phase of torch or the user has ended."""
        super().__init__(page)

    def begin(self, phase: str, site: CodeLine | None = None) -> None:
        super().begin(phase, site)
        if phase:
            self._log.write(TraceLine.PHASE, 0, phase, None)

    def leave(self, depth: int) -> None:
        before = len(self._open)
        super().leave(depth)
        if len(self._open) < before:
            self._log.write(TraceLine.LEFT, len(self._open))
            self.on_leave()

    def _push(
        self, name: str, outer: bool, anchor: Anchor | None, code: CodeType, line: int
    ) -> int:
        depth = super()._push(name, outer, anchor, code, line)
        self._log.write(TraceLine.PHASE, depth, name, (code.co_filename, line))
        return depth


class OperationTrace(Recorder):
    """Stands before the journal, and writes each operation of Python when it has its number."""

    def __init__(self, journal: CallJournal, log: TraceLog) -> None:
        self._journal, self._log = journal, log

    def before(self, operation: Operation) -> None:
        self._journal.before(operation)
        if operation.issuer is not Issuer.PYTHON:
            return
        given = operation.given
        arguments = () if given is None else (*given.args, *given.kwargs.values())
        site = operation.site
        self._log.write(
            TraceLine.CALL,
            id(operation),
            operation.group,
            operation.number,
            operation.name,
            *_extent(arguments),
            operation.reduce_op,
            operation.root,
            None if site is None else (site.code.co_filename, site.line),
        )

    def returned(self, operation: Operation, error: BaseException | None) -> None:
        self._journal.returned(operation, error)

    def waits(self, operation: Operation) -> None:
        self._journal.waits(operation)

    def waited(self, operation: Operation, error: BaseException | None) -> None:
        has_work = operation.process_group is None
        self._journal.waited(operation, error)
        if has_work:
            name = None if error is None else type(error).__name__
            self._log.write(TraceLine.WAITED, id(operation), name)

    def group_begins(self, name: str, by_user: bool) -> None:
        self._journal.group_begins(name, by_user)
        self._log.write(TraceLine.GROUP, name, 0)


class TracedGroup(DefaultGroup):
    """A default group that also writes to the trace how many collectives each group had before the
    test.
    """

    def __init__(self, log: TraceLog, world: World, rank: int) -> None:
        operations = operations_of_process()
        super().__init__(CallJournal(operations), world, rank)
        operations.record(OperationTrace(self.journal, log), with_arguments=True)
        self._log = log

    def prepare(
        self, store: str | None, file: list[int], served: Callable[[], Any], keys: int
    ) -> None:
        super().prepare(store, file, served, keys)
        for count in self.counts():
            self._log.write(TraceLine.GROUP, count.name, self.journal.issued_before(count.name))


class TracedStatusReporter(StatusReporter):
    """A status reporter that also writes what C++ issued without Python: DDP's gradients,
    functional collectives.
    """

    def __init__(
        self, group: DefaultGroup, phase_stack: PhaseStack, side_channel: SideChannel, log: TraceLog
    ) -> None:
        super().__init__(group, phase_stack, side_channel)
        self._log = log
        self._complete: set[int] = set()
        self._wall_ahead = 0
        self._next_glance = 0.0

    def begin(self) -> None:
        super().begin()
        self._complete.clear()
        self._wall_ahead = time.time_ns() - time.monotonic_ns()

    def end(self) -> None:
        super().end()
        self._write_recorded()
        self._log.write(TraceLine.LEFT, 0)

    def stand(self, probe: Probe) -> RankStatus:
        # At each probe too, as the test of a rank that is stopped or dies has no end.
        self._write_recorded()
        return super().stand(probe)

    def _needs_issued(self, frame: FrameType | None) -> bool:
        """Always True: the trace shows what a rank had begun, wherever it was stopped."""
        return True

    def glance(self) -> None:
        """Read the recorder on the test's own time, of which it takes little."""
        before = time.monotonic()
        if before >= self._next_glance:
            self._write_recorded()
            after = time.monotonic()
            self._next_glance = after + _PAUSE_FACTOR * (after - before)

    def _write_recorded(self) -> None:
        from_python = {(call.group, call.number) for call in list(self._group.journal.calls)}
        for entry in self._records():
            record = entry["record_id"]
            group, number = entry["process_group"][0], entry["collective_seq_id"]
            if record in self._complete or (group, number) in from_python:
                continue
            if entry["retired"]:
                self._complete.add(record)
            sizes, dtypes = entry["input_sizes"], entry["input_dtypes"]
            self._log.write(
                TraceLine.RECORDED,
                record,
                group,
                number,
                operation_of(entry),
                sum(map(math.prod, sizes)) if sizes else None,
                dtypes[0] if dtypes else None,
                entry["time_created_ns"] - self._wall_ahead,
                entry["retired"],
            )


def _extent(arguments: Iterable[Any]) -> tuple[int | None, str | None]:
    """Elements and dtype of the first argument that is a tensor or a flat list of tensors."""
    for argument in arguments:
        tensors = argument if isinstance(argument, list) else [argument]
        if tensors and all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            elements = sum(tensor.numel() for tensor in tensors)
            return elements, str(tensors[0].dtype).removeprefix("torch.")
    return None, None
