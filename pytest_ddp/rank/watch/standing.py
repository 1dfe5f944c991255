"""Where this rank stands: answered by the link's thread while the main thread is stuck."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from sys import _current_exceptions
from types import FrameType
from typing import Any

import torch
from torch._C import _distributed_c10d
from torch.distributed import is_initialized

from pytest_ddp.rank.groups.calls import KEPT, Call, Piece
from pytest_ddp.rank.groups.default import DefaultGroup
from pytest_ddp.rank.groups.origins import raised_at, stack_of
from pytest_ddp.rank.groups.sidechannel import SideChannel
from pytest_ddp.rank.groups.timeouts import Pace, left_of
from pytest_ddp.rank.watch.lifecycle import Lifecycle
from pytest_ddp.system import processes
from pytest_ddp.system.own import os, pickle, threading, time
from pytest_ddp.wire.survey import (
    CallRecord,
    Calls,
    Handled,
    Probe,
    Sent,
    Standing,
    TellCalls,
    Wait,
    group_words,
)

_dump: Any = getattr(_distributed_c10d, "_dump_fr_trace", None)
"""torch's flight recorder; a private function, absent before torch 2.8."""

_BUFFER_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Environment variables that set the recorder's size, the first one that is there; 0 is off."""

_DONE = 16
"""Collectives of a group that are told after their end: a rank that waits for nothing can be so
many ahead of one that waits."""

_LONGEST_TEXT, _LONGEST_MESSAGE = 10_000, 120
"""Characters of a handled exception that are looked at, and told."""

_BYSTANDERS = ("pytest-ddp", "QueueFeederThread", "tqdm")
_ENGINE = (
    *("torch/autograd/graph.py", "torch/_ops.py", "torch/distributed/"),
    # DDP's reducer settles its buckets between two steps.
    "torch/nn/parallel/distributed.py",
)
"""Where the main thread is when C++ waits for a collective that C++ began."""

_WAITING = ("/distributed_c10d.py", "/rendezvous.py", "/_functional_collectives.py")
"""Files of torch.distributed that call what waits for peers, and hardly anything else that does."""

_JOINING = ("/threading.py", "/queue.py", "/selectors.py", "/concurrent/futures/_base.py")
"""Files of the standard library where a thread sleeps that waits for another one."""

_UNEVEN = "all_to_all"
"""Of what C++ issues the operation, as recorded, whose sizes may legally differ."""

_TOWARDS = {"send": "to", "recv": "from"}
_MANY = 8
"""Ranks of a new group before their list is cut short."""

_NAMES = {"_allgather_base": "all_gather_into_tensor", "_reduce_scatter_base": "reduce_scatter"}


_DTYPES = {
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "Bool": "bool",
    "BFloat16": "bfloat16",
}


def recorder_problem() -> str:
    """Why collectives that never end cannot be proved to, in a sentence; empty if they can."""
    left = "hangs are left to the deadline (--ddp-timeout), with every rank's stack"
    if _dump is None:
        return f"this torch has no flight recorder (2.8 and newer have): {left}"
    name = next((name for name in _BUFFER_SIZES if name in os.environ), None)
    if name is not None and os.environ[name].strip() == "0":
        return f"{name}=0 turns torch's flight recorder off: {left}"
    return ""


class Surveyor:
    """Answers probes; everything it reads is safe to read beside the running main thread."""

    def __init__(
        self, group: DefaultGroup, lifecycle: Lifecycle, side_channel: SideChannel
    ) -> None:
        self._group = group
        self._lifecycle = lifecycle
        self._side_channel = side_channel
        self._main = threading.main_thread()
        self._pace = Pace()
        self._clock = time.time_ns()
        self._settled = dict[str, int](), dict[str, int]()
        """When the groups were made and how many collectives they had, all complete."""
        self._done: tuple[Wait, ...] = ()
        self._ended = False
        self._at_start = False

    def begin(self) -> None:
        """A new test: older records of the flight recorder are none of its business."""
        self._clock = time.time_ns()
        self._settled, self._done = ({}, {}), ()
        self._ended = False
        self._pace = Pace()

    @contextlib.contextmanager
    def at_start(self) -> Iterator[None]:
        """In the block the rank is ready and waits for those that are not."""
        self._at_start = True
        try:
            yield
        finally:
            self._at_start = False

    def end(self) -> None:
        """The test is over, and its groups are as it left them."""
        self._ended = True

    def answer(self, question: Probe | TellCalls) -> Standing | Calls:
        """Answer the controller."""
        match question:
            case Probe():
                return self.stand(question)
            case TellCalls():
                return self.calls(question.test)

    def stand(self, probe: Probe) -> Standing:
        """Say where the main thread is and what it waits for."""
        self._pace.look(self._group.journal.waiting.get(self._main.ident or 0))
        phase, place, stack = self._lifecycle.look()
        frame, engaged = next(iter(stack), None), self._engaged(stack)
        del stack  # by whose frames objects of the test live
        begun, done = self._issued() if self._tells_issued(frame) else ((), ())
        waits = self._waits(frame, begun)
        # Read last: if it is as it was at the probe before, what was read above is true of now.
        state, spent = _activity()
        inner = f"{frame.f_code.co_name}:{frame.f_lasti}" if frame is not None else ""
        exchanges = self._side_channel.exchanges
        counts = self._group.counts()
        moves = (exchanges, *(count.collectives for count in counts))
        blocked = bool(waits) and state != "R"
        beside = self._beside()
        return Standing(
            test=probe.test,
            number=probe.number,
            pulse=f"{spent} {inner} {moves}",
            blocked=blocked,
            alone=not any(_may_communicate(thread) for thread in threading.enumerate()),
            waits=waits,
            begun=begun,
            done=done,
            counts=counts,
            sent=tuple(self._sent()),
            exchanges=exchanges,
            phase=phase,
            place=place,
            # Awake, too: a wait on a FileStore looks at its file every 10 ms.
            engaged="" if blocked else engaged or _for_thread(frame, beside),
            beside=beside,
            handled=_handled(self._main.ident or 0),
        )

    def calls(self, test: int) -> Calls:
        """The collectives that the test asked for, as far as they are kept."""
        before = self._group.journal.before
        records = (
            CallRecord(
                group=call.group,
                number=call.number - before(call.group),
                operation=call.operation,
                numel=call.numel,
                dtype=None if call.dtype is None else _dtype(call.dtype),
                reduce_op=call.reduce_op,
                root=call.root,
                site=str(call.site),
                sends=tuple(map(_piece_words, call.sends)),
                receives=tuple(map(_piece_words, call.receives)),
            )
            for call in (*self._group.journal.calls, *self._group.journal.forms)
            if call.number > 0
        )
        return Calls(test, (*records, *self._native()))

    def _native(self) -> Iterator[CallRecord]:
        """What C++ issued by itself, by the flight recorder: only it knows of them."""
        journal = self._group.journal
        forms = {(call.group, call.number - journal.before(call.group)) for call in journal.forms}
        asked = self._asked_by_python() | forms
        if sum(count.collectives for count in self._group.counts()) <= len(asked):
            return
        # Python's own calls are forgotten at some time.
        forgets = max(len(journal.calls), len(journal.forms)) >= KEPT
        first = {name: min(n for of, n in asked if of == name) for name, _ in asked}
        for entry in self._records():
            name = entry["process_group"][0]
            number = entry["collective_seq_id"] - journal.before(name)
            is_forgotten = forgets and number < first.get(name, math.inf)
            if journal.is_recorded(name) and (name, number) not in asked and not is_forgotten:
                operation = operation_of(entry)
                yield CallRecord(
                    group=name,
                    number=number,
                    operation=operation,
                    numel=None if operation == _UNEVEN else _elements(entry),
                    dtype=_recorded_dtype(entry["input_dtypes"]),
                    reduce_op=None,
                    root=None,
                    site="",
                )

    # ------------------------------------------------------------------ parts of an answer

    def _tells_issued(self, frame: FrameType | None) -> bool:
        """False for a rank that will go on by itself, of which no proof asks what it has issued."""
        if self._ended:
            return True
        main = self._main.ident or 0
        waits = main in self._group.journal.waiting or self._side_channel.wait(main) is not None
        return (waits or _is_in_engine(frame)) and _activity()[0] != "R"

    def _waits(self, frame: FrameType | None, begun: tuple[Wait, ...]) -> tuple[Wait, ...]:
        main = self._main.ident or 0
        if (exchange := self._side_channel.wait(main)) is not None:
            return (exchange,)
        call = self._group.journal.waiting.get(main)
        if call is not None:
            if call.number == 0:
                wait = self._receive(call)
                return () if wait is None else (wait,)
            number = call.number - self._group.journal.before(call.group)
            return tuple(
                replace(wait, ends_in=self._pace.left(call, wait.ends_in))
                for wait in begun
                if (wait.group, wait.number) == (call.group, number)
            )
        if _is_in_engine(frame):
            asked = {(wait.group, wait.number) for wait in begun} - self._asked_by_python()
            return tuple(wait for wait in begun if (wait.group, wait.number) in asked)
        return ()

    def _engaged(self, stack: Sequence[FrameType]) -> str:
        if self._at_start:
            return "start of the test"
        return self._operation(self._main.ident or 0, stack)

    def _beside(self) -> str:
        """What threads beside the main one wait in."""
        found = {
            thread.name: words
            for thread in threading.enumerate()
            if _may_communicate(thread)
            and (words := self._operation(thread.ident or 0, stack_of(thread.ident)))
        }
        return "; ".join(f"{words} in thread {name}" for name, words in found.items())

    def _operation(self, thread: int, stack: Sequence[FrameType]) -> str:
        """What a thread waits in, in words."""
        if (exchange := self._side_channel.wait(thread)) is not None:
            return f"{exchange.operation} #{exchange.number}"
        call = self._group.journal.waiting.get(thread)
        if call is None:
            return self._entry(stack)
        members = next((c.members for c in self._group.counts() if c.name == call.group), ())
        if call.tag is not None and call.root is not None:
            known = 0 <= call.root < len(members)
            peer = f"rank {members[call.root]}" if known else "any rank"
            return f"{call.operation} {_TOWARDS[call.operation]} {peer} (tag {call.tag})"
        number = call.number - self._group.journal.before(call.group)
        of_group = f" #{number} of {group_words(call.group, members)}"
        return f"{call.operation}{of_group if call.number and members else ''}"

    def _entry(self, stack: Sequence[FrameType]) -> str:
        called = _entry(stack)
        if called is None:
            return ""
        name = called.f_code.co_name
        if name != "new_group":
            return name
        # Ranks that make groups in unlike orders wait for each other in the same line.
        number = self._group.numbered()
        which = f" #{number}" if number > 0 else ""
        return f"{name}{which} ({_listed(called.f_locals.get('ranks'))})"

    def _asked_by_python(self) -> set[tuple[str, int]]:
        before = self._group.journal.before
        return {
            (call.group, call.number - before(call.group))
            for call in list(self._group.journal.calls)
        }

    def _issued(self) -> tuple[tuple[Wait, ...], tuple[Wait, ...]]:
        """Collectives that are not complete, by the flight recorder, and the last that are over.

        It is asked only where some may not be: it tells all that it has kept of earlier tests
        too, which takes 30 ms once it is full.
        """
        made, counts = dict(self._group.journal.made), self._group.counts()
        issued = {count.name: count.collectives for count in counts if count.collectives}
        if (made, issued) == self._settled:
            return (), self._done
        recorded = self._group.journal.is_recorded
        members = {count.name: count.members for count in counts if recorded(count.name)}
        calls = {(call.group, call.number): call for call in list(self._group.journal.calls)}
        entries = [entry for entry in self._records() if entry["process_group"][0] in members]
        retired: dict[str, deque[dict[str, Any]]] = {}
        for entry in entries:
            if entry["retired"]:
                name = entry["process_group"][0]
                retired.setdefault(name, deque(maxlen=_DONE)).append(entry)

        def wait(entry: dict[str, Any]) -> Wait:
            name, number = entry["process_group"][0], entry["collective_seq_id"]
            return self._wait(entry, members[name], calls.get((name, number)))

        begun = tuple(wait(entry) for entry in entries if not entry["retired"])
        self._done = tuple(map(wait, itertools.chain.from_iterable(retired.values())))
        # What has its number already, and no record yet, is missing among the retired.
        last = {wait.group: wait.number for wait in self._done}
        if not begun and last == issued:
            self._settled = made, issued
        return begun, self._done

    def _records(self) -> Iterator[dict[str, Any]]:
        """Collectives of this test, on groups of now, that the flight recorder has."""
        if _dump is None or not is_initialized():
            return
        made = self._group.journal.made
        # Our own process pickled this a microsecond ago.
        for entry in pickle.loads(_dump(True, False, False))["entries"]:
            since = max(self._clock, made.get(entry["process_group"][0], 0))
            if not entry["is_p2p"] and entry["time_created_ns"] >= since:
                yield entry

    def _wait(self, entry: dict[str, Any], members: tuple[int, ...], call: Call | None) -> Wait:
        name = entry["process_group"][0]
        return Wait(
            group=name,
            members=members,
            number=entry["collective_seq_id"] - self._group.journal.before(name),
            operation=operation_of(entry) if call is None else call.operation,
            recorded_as=_recorded_as(entry),
            numel=_elements(entry),
            dtype=_recorded_dtype(entry["input_dtypes"]),
            peer=None,
            tag=None,
            site="" if call is None else str(call.site),
            root=None if call is None or call.root is None else members[call.root],
            ends_in=left_of(entry),
        )

    def _receive(self, call: Call) -> Wait | None:
        """A receive that waits; None for one from anybody, or for a send."""
        if call.operation != "recv" or call.root is None or call.root < 0 or call.tag is None:
            return None
        if not self._group.journal.is_recorded(call.group):
            return None
        members = next((c.members for c in self._group.counts() if c.name == call.group), ())
        if not members:
            return None
        return Wait(
            group=call.group,
            members=members,
            number=self._group.journal.received[call.group, call.root, call.tag],
            operation="recv",
            recorded_as=None,
            numel=None,
            dtype=None,
            peer=members[call.root],
            tag=call.tag,
            site=str(call.site),
            ends_in=self._pace.left_of_receive(call),
        )

    def _sent(self) -> Iterator[Sent]:
        members = {count.name: count.members for count in self._group.counts()}
        for (group, receiver, tag), count in dict(self._group.journal.sent).items():
            if group in members:
                yield Sent(group, members[group][receiver], tag, count)


def operation_of(entry: dict[str, Any]) -> str:
    """What users call the operation of a flight recorder's entry."""
    recorded = _recorded_as(entry)
    return _NAMES.get(recorded, recorded)


def _recorded_as(entry: dict[str, Any]) -> str:
    name: str = entry["profiling_name"]
    return name.partition(":")[2] or name


def _is_in_engine(frame: FrameType | None) -> bool:
    return frame is not None and any(part in frame.f_code.co_filename for part in _ENGINE)


def _entry(stack: Sequence[FrameType]) -> FrameType | None:
    """The function of torch.distributed that was called, if C++ does its waiting."""
    called: FrameType | None = None
    if not stack or not stack[0].f_code.co_filename.endswith(_WAITING):
        return None
    for frame in itertools.takewhile(_is_of_distributed, stack):
        # Not the wrapper that logs it.
        called = called if frame.f_code.co_name == "wrapper" else frame
    return called


def _listed(ranks: list[int] | None) -> str:
    if ranks is None:
        return "all ranks"
    more = ", ..." if len(ranks) > _MANY else ""
    return f"ranks {', '.join(map(str, ranks[:_MANY]))}{more}"


def _for_thread(frame: FrameType | None, beside: str) -> str:
    """What other threads are in, if the main one sleeps until one of them has done something."""
    return beside if frame is not None and frame.f_code.co_filename.endswith(_JOINING) else ""


def _handled(thread: int) -> Handled | None:
    found: Any = _current_exceptions().get(thread)
    # Python 3.11 has what sys.exc_info() gives.
    error: BaseException | None = found[1] if isinstance(found, tuple) else found
    # A generator that is closed has no error.
    if error is None or isinstance(error, GeneratorExit):
        return None
    if (line := raised_at(error.__traceback__)) is None:
        return None
    code, number = line
    kind = type(error)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return Handled(
        kind=f"{module}{kind.__qualname__}",
        message=_message(error),
        place=f"{code.co_filename}:{number} in {code.co_name}",
    )


def _message(error: BaseException) -> str:
    # Of the user's code, which may raise whatever it likes.
    with contextlib.suppress(BaseException):
        lines = (line.strip() for line in str(error)[:_LONGEST_TEXT].splitlines())
        return next(filter(None, lines), "")[:_LONGEST_MESSAGE]
    return ""


def _is_of_distributed(frame: FrameType) -> bool:
    return "torch/distributed/" in frame.f_code.co_filename


def _activity() -> tuple[str, str]:
    """State letter of the main thread, and the processor time that it has used."""
    pid = os.getpid()  # which is the main thread's own number, also after a fork
    try:
        stat = processes.read(f"/proc/{pid}/task/{pid}/stat").decode(errors="replace")
    except OSError:
        return "R", ""
    fields = stat.rpartition(")")[2].split()
    return fields[0], f"{fields[11]}+{fields[12]}"


def _may_communicate(thread: threading.Thread) -> bool:
    return thread is not threading.main_thread() and not thread.name.startswith(_BYSTANDERS)


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _piece_words(piece: Piece) -> str:
    return " + ".join(f"{numel} x {_dtype(dtype)}" for numel, dtype in piece)


def _recorded_dtype(names: list[str]) -> str | None:
    """The first of these as Python calls it; the recorder says ``Float`` for float32."""
    return _DTYPES.get(names[0], names[0]) if names else None


def _elements(entry: dict[str, Any]) -> int | None:
    sizes = entry["input_sizes"]
    return sum(map(_product, sizes)) if sizes else None


def _product(size: list[int]) -> int:
    product = 1
    for extent in size:
        product *= extent
    return product
