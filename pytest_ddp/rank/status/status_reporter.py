"""Reports a rank's status: the link's thread answers probes while the main thread is stuck."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch._C import _distributed_c10d
from torch.distributed import is_initialized

from pytest_ddp.protocol.rank_status import (
    NEW_GROUP,
    BegunMessages,
    CallRecord,
    Calls,
    GroupCount,
    PendingOperation,
    Probe,
    RankStatus,
    RequestCalls,
)
from pytest_ddp.rank.groups.default_group import DefaultGroup
from pytest_ddp.rank.groups.side_channel import SideChannel
from pytest_ddp.rank.groups.wait_timeouts import WaitTimeouts, left_of
from pytest_ddp.rank.operations.operation import KEPT, Operation, Piece
from pytest_ddp.rank.operations.origins import is_of_stream, stack_of
from pytest_ddp.rank.operations.table import DTYPE_NAMES, UNEVEN, public_name
from pytest_ddp.rank.status.handled import handled_beside, handled_in
from pytest_ddp.rank.status.phase_stack import PhaseStack
from pytest_ddp.system import processes
from pytest_ddp.system.stdlib import os, pickle, threading, time

_dump: Any = getattr(_distributed_c10d, "_dump_fr_trace", None)
"""Dumps torch's flight recorder; a private function, missing before torch 2.8."""

_BUFFER_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Environment variables for the recorder's size; the first one that is set counts, 0 is off."""

_ENTRIES = 2000
"""The recorder's size by default in newer versions of torch. In 2.8 it is 0: no hang is proved."""

_DONE = 16
"""Completed collectives that are reported for each group: a rank that waits for nothing can be this
many collectives ahead of one that waits."""

_BYSTANDERS = ("pytest-ddp", "QueueFeederThread", "tqdm")
"""Beginnings of the names of threads that never communicate."""
_ENGINE = (
    "torch/autograd/graph.py",
    "torch/_ops.py",
    "torch/distributed/",
    # Between two steps, DDP's reducer rebuilds its buckets.
    "torch/nn/parallel/distributed.py",
)
"""Files that the main thread is in while C++ waits for a collective that C++ issued."""

_WAITING = ("/distributed_c10d.py", "/rendezvous.py", "/_functional_collectives.py")
"""Files of torch.distributed whose calls into C++ wait for peers, nearly always."""

_JOINING = ("/threading.py", "/queue.py", "/selectors.py", "/concurrent/futures/_base.py")
"""Files of the standard library in which a thread sleeps until another thread acts."""

_TOWARDS = {"send": "to", "recv": "from"}


class _ThreadOperation(NamedTuple):
    """An operation that a thread waits in."""

    words: str
    """The operation in words, for people; empty if the thread waits in none."""
    name: str = ""
    """The public name; empty for the start of the test."""


_NOTHING = _ThreadOperation("")

_MANY = 8
"""Ranks that are listed for a new group before the list is cut short."""


def make_recorder() -> None:
    """Make the process's flight recorder, with entries unless a user has set its size.

    torch reads the size when the recorder is first used, and never again: the test and its
    processes find the environment unchanged.
    """
    if _dump is None or any(name in os.environ for name in _BUFFER_SIZES):
        return
    os.environ[_BUFFER_SIZES[0]] = str(_ENTRIES)
    try:
        _dump(False, False, False)
    finally:
        del os.environ[_BUFFER_SIZES[0]]


def recorder_problem() -> str:
    """Why hangs cannot be proved here, in a sentence; empty if they can."""
    left = "hangs are left to the deadline (--ddp-timeout), with every rank's stack"
    if _dump is None:
        return f"this torch has no flight recorder (2.8 and newer have): {left}"
    name = next((name for name in _BUFFER_SIZES if name in os.environ), None)
    if name is not None and os.environ[name].strip() == "0":
        return f"{name}=0 turns torch's flight recorder off: {left}"
    return ""


# Overview
#
# The link's thread calls `answer` for each `Probe`, while the main thread runs, waits or hangs. It
# takes no lock and stops no thread: a report is a series of reads, and the main thread may move
# between any two of them. Two rules make it usable in a proof:
#
# - `pulse` is read after all else. It holds the main thread's processor time and instruction, and
#   the counts of exchanges and collectives. The prover uses a report only if its `pulse` is
#   that of the report before: then nothing has moved, and all that was read in between still holds.
# - What is not known is reported as "not blocked". A rank counts as stuck only if its main thread
#   sleeps (`_activity` is not "R") in a wait that `_waits` can name.
#
# A `RankStatus` puts the main thread in one of these states. No field holds the state: `stand`
# derives it anew for each probe.
#
#   state     reported as              who moves it there                next state
#   --------  -----------------------  --------------------------------  ---------------------------
#   starting  `engaged`: start of the  `at_start` is entered: this rank  running, when the others
#             test                     is ready, others are not          are ready as well
#   running   `waits` empty,           any return to user code; also     waiting, engaged, joining,
#             `engaged` empty          whatever is no other state        ended
#   waiting   `waits` not empty,       the main thread: `waiting` of     blocked when it sleeps,
#             not `blocked`            the journal, an exchange, or      running when it returns
#                                      `_is_in_engine`
#   blocked   `waits` not empty,       the kernel: the thread sleeps     running, by a peer or by a
#             `blocked`                                                  timeout (`ends_in`)
#   engaged   `engaged`: operation     the main thread: new_group, a     running
#                                      monitored_barrier, a receive from
#                                      any rank; nothing can be proved
#                                      of it
#   joining   `engaged` as `beside`    the main thread sleeps until      running, when that thread
#                                      another one acts (`_JOINING`)     has acted
#   held      as running; `beside` has  a subscriber of operations, on     running, when that lets
#             its words                 purpose                          it go
#   ended     as running; `_ended`     `end`: the test is over on this   starting, by `begin` of the
#                                      rank                              next test
#
# The flight recorder is the only source of `begun` and `done`. A dump of a full one takes 30 ms, so
# `_issued` reads it only if it may have something new:
#
#   `_settled`                 what `_issued` does             who moves it there
#   -------------------------  ------------------------------  -------------------------------------
#   empty                      reads the recorder, unless      `begin`, for each test
#                              no group was made or used
#   groups and counts as now   returns `_done` of the last     `_issued`, once every collective with
#                              report                          a number has a record and is retired
#   groups or counts differ    reads the recorder              Python or C++ that makes a group or
#                                                              issues a collective
#
# `_needs_issued` skips even that for a rank that is running: no proof uses its collectives. After
# `end` they are reported again, since peers may wait in collectives that this rank has left.


class StatusReporter:
    """Answers probes; all that it reads is safe to read while the main thread runs."""

    def __init__(
        self, group: DefaultGroup, phase_stack: PhaseStack, side_channel: SideChannel
    ) -> None:
        make_recorder()
        self._group = group
        self._operations = group.journal.operations
        self._phase_stack = phase_stack
        self._side_channel = side_channel
        self._main = threading.main_thread()
        self._wait_timeouts = WaitTimeouts()
        self._clock = time.time_ns()
        self._settled = dict[str, int](), dict[str, int]()
        """Times of making of groups and their numbers of collectives, when all were complete."""
        self._done: tuple[PendingOperation, ...] = ()
        self._ended = False
        self._at_start = False
        self._backwards = phase_stack.backwards
        """The number of backward passes of the tests before."""

    def begin(self) -> None:
        """Begin a new test: older entries of the flight recorder are ignored from now on."""
        self._clock = time.time_ns()
        self._settled, self._done = ({}, {}), ()
        self._ended = False
        self._wait_timeouts = WaitTimeouts()
        self._backwards = self._phase_stack.backwards

    @contextlib.contextmanager
    def at_start(self) -> Iterator[None]:
        """A block in which this rank is ready and waits for ranks that are not."""
        self._at_start = True
        try:
            yield
        finally:
            self._at_start = False

    def end(self) -> None:
        """End the test; its groups stay as it left them."""
        self._ended = True

    def answer(self, request: Probe | RequestCalls) -> RankStatus | Calls:
        """The answer to a request of the controller."""
        match request:
            case Probe():
                return self.stand(request)
            case RequestCalls():
                return self.calls(request.test)

    def stand(self, probe: Probe) -> RankStatus:
        """The rank's status: where its main thread is, and what it waits for."""
        self._wait_timeouts.look(self._operations.waiting.get(self._main.ident or 0))
        phase, place, stack = self._phase_stack.look()
        frame, engaged = next(iter(stack), None), self._engaged(stack)
        missing_store = _missing_store(stack)
        threads = self._other_threads()
        handled = handled_in(self._main.ident or 0)
        if handled is None and _is_joining(frame):
            handled = handled_beside(threads, stack)
        del stack  # its frames keep objects of the test alive
        begun, done = self._issued() if self._needs_issued(frame) else ((), ())
        waits = self._waits(frame, begun)
        # Read last: if it equals that of the probe before, all that was read above is still true.
        state, cpu_time = _activity()
        inner = f"{frame.f_code.co_name}:{frame.f_lasti}" if frame is not None else ""
        exchanges = self._side_channel.exchanges
        counts = self._group.counts()
        members = {count.name: count.members for count in counts}
        moves = (exchanges, *(count.collectives for count in counts))
        blocked = bool(waits) and state != "R"
        beside = "; ".join(dict.fromkeys(thread.words for thread in threads.values()))
        first = next(iter(threads.values()), _NOTHING)
        if not engaged.words and _is_joining(frame):
            engaged = first._replace(words=beside)
        # A rank that is held waits for nobody, whatever it sleeps in.
        held = self._operations.held(self._main.ident or 0)
        return RankStatus(
            test=probe.test,
            number=probe.number,
            pulse=f"{cpu_time} {inner} {moves}",
            blocked=blocked,
            alone=not any(_may_communicate(thread) for thread in threading.enumerate()),
            waits=waits,
            begun=begun,
            done=done,
            counts=counts,
            begun_sends=tuple(_begun_messages(self._group.journal.sent, members)),
            begun_receives=tuple(_begun_messages(self._group.journal.received, members)),
            exchanges=exchanges,
            phase=phase,
            place=place,
            # Also while it is awake: a wait on a FileStore polls its file every 10 ms.
            engaged="" if blocked or held else engaged.words,
            engaged_name="" if blocked or held else engaged.name,
            beside=held or beside,
            beside_name="" if held else first.name,
            handled=handled,
            backwards=self._phase_stack.backwards - self._backwards,
            in_backward=self._phase_stack.in_backward(),
            dropped=tuple(self._group.dropped()),
            new_groups=tuple(self._group.new_groups()),
            missing_store=missing_store,
            forked=self._group.journal.forked.living(),
        )

    def calls(self, test: int) -> Calls:
        """The last collectives that this rank has issued in the test, and its messages."""
        before = self._group.journal.issued_before
        records = (
            CallRecord(
                group=call.group,
                number=call.number - before(call.group),
                operation=call.name,
                numel=call.numel,
                dtype=None if call.dtype is None else _dtype(call.dtype),
                reduce_op=call.reduce_op,
                root=call.root,
                site=call.code_line,
                sends=tuple(map(_piece_words, call.sends)),
                receives=tuple(map(_piece_words, call.receives)),
            )
            for call in (*self._group.journal.calls, *self._group.journal.forms)
            if call.number > 0
        )
        return Calls(test, (*records, *self._native()), self._group.traffic(unclear=False))

    def _native(self) -> Iterator[CallRecord]:
        """Collectives that C++ issued without Python, which only the flight recorder has."""
        journal = self._group.journal
        forms = {
            (call.group, call.number - journal.issued_before(call.group)) for call in journal.forms
        }
        from_python = self._called_from_python() | forms
        if sum(count.collectives for count in self._group.counts()) <= len(from_python):
            return
        # The journal drops its oldest calls: what is older than its first one may be Python's.
        forgets = max(len(journal.calls), len(journal.forms)) >= KEPT
        first = {name: min(n for of, n in from_python if of == name) for name, _ in from_python}
        for entry in self._records():
            name = entry["process_group"][0]
            number = entry["collective_seq_id"] - journal.issued_before(name)
            is_forgotten = forgets and number < first.get(name, math.inf)
            is_native = (name, number) not in from_python and not is_forgotten
            if journal.is_recorded(name) and is_native:
                operation = operation_of(entry)
                yield CallRecord(
                    group=name,
                    number=number,
                    operation=operation,
                    numel=None if operation in UNEVEN else _elements(entry),
                    dtype=_recorded_dtype(entry["input_dtypes"]),
                    reduce_op=None,
                    root=None,
                    site=None,
                )

    # ------------------------------------------------------------------ parts of an answer

    def _needs_issued(self, frame: FrameType | None) -> bool:
        """False for a rank that is running: no proof uses the collectives that it has issued."""
        if self._ended:
            return True
        main = self._main.ident or 0
        waits = main in self._operations.waiting or self._side_channel.wait(main) is not None
        return (waits or _is_in_engine(frame)) and _activity()[0] != "R"

    def _waits(
        self, frame: FrameType | None, begun: tuple[PendingOperation, ...]
    ) -> tuple[PendingOperation, ...]:
        main = self._main.ident or 0
        if (exchange := self._side_channel.wait(main)) is not None:
            return (exchange,)
        call = self._operations.waiting.get(main)
        if call is not None:
            if call.message_number:
                wait = self._message(call)
                return () if wait is None else (wait,)
            number = call.number - self._group.journal.issued_before(call.group)
            return tuple(
                replace(wait, ends_in=self._wait_timeouts.left(call, wait.ends_in))
                for wait in begun
                if (wait.group, wait.number) == (call.group, number)
            )
        return self._issued_by_cpp(begun) if _is_in_engine(frame) else ()

    def _issued_by_cpp(self, begun: tuple[PendingOperation, ...]) -> tuple[PendingOperation, ...]:
        from_python = self._called_from_python()
        return tuple(wait for wait in begun if (wait.group, wait.number) not in from_python)

    def _engaged(self, stack: Sequence[FrameType]) -> _ThreadOperation:
        if self._at_start:
            return _ThreadOperation("start of the test")
        return self._operation(self._main.ident or 0, stack)

    def _other_threads(self) -> dict[int, _ThreadOperation]:
        """The operations that threads other than the main one wait in, by thread identifier."""
        return {
            thread.ident or 0: found._replace(words=f"{found.words} in thread {thread.name}")
            for thread in threading.enumerate()
            if _may_communicate(thread) and (found := self._operation_of(thread)).words
        }

    def _operation_of(self, thread: threading.Thread) -> _ThreadOperation:
        """The operation that another thread waits in; also in its backward pass."""
        stack = stack_of(thread.ident)
        found = self._operation(thread.ident or 0, stack)
        is_in_engine = _is_in_engine(next(iter(stack), None))
        if found.words or not is_in_engine or _activity(thread.native_id)[0] == "R":
            return found
        begun, _ = self._issued()
        waits = self._issued_by_cpp(begun)
        words = ", ".join(
            f"{wait.operation} #{wait.number} of {wait.group_words}" for wait in waits
        )
        return _ThreadOperation(words, waits[0].operation if waits else "")

    def _operation(self, thread: int, stack: Sequence[FrameType]) -> _ThreadOperation:
        """The operation that a thread waits in."""
        if (exchange := self._side_channel.wait(thread)) is not None:
            words = f"{exchange.operation} #{exchange.number}"
            return _ThreadOperation(words, exchange.operation)
        call = self._operations.waiting.get(thread)
        if call is None:
            return self._public_call(stack)
        group = self._group_of(call)
        members = () if group is None else group.members
        if call.tag is not None and call.root is not None:
            known = 0 <= call.root < len(members)
            peer = f"rank {members[call.root]}" if known else "any rank"
            words = f"{call.name} {_TOWARDS[call.name]} {peer} (tag {call.tag})"
            return _ThreadOperation(words, call.name)
        number = call.number - self._group.journal.issued_before(call.group)
        of_group = "" if group is None or not call.number else f" #{number} of {group.words}"
        return _ThreadOperation(f"{call.name}{of_group}", call.name)

    def _group_of(self, call: Operation) -> GroupCount | None:
        return next((count for count in self._group.counts() if count.name == call.group), None)

    def _public_call(self, stack: Sequence[FrameType]) -> _ThreadOperation:
        called = _outermost_call(stack)
        if called is None:
            return _NOTHING
        name = called.f_code.co_name
        if name != NEW_GROUP:
            return _ThreadOperation(name, name)
        # Ranks that make groups in different orders wait for each other in the same line.
        number = self._group.numbered()
        which = f" #{number}" if number > 0 else ""
        ranks = _listed(called.f_locals.get("ranks"))
        return _ThreadOperation(f"{name}{which} ({ranks})", name)

    def _called_from_python(self) -> set[tuple[str, int]]:
        before = self._group.journal.issued_before
        return {
            (call.group, call.number - before(call.group))
            for call in list(self._group.journal.calls)
        }

    def _issued(self) -> tuple[tuple[PendingOperation, ...], tuple[PendingOperation, ...]]:
        """Collectives of the flight recorder: those that are not complete, and the last done.

        The recorder is read only where some may be incomplete: a dump has all entries of earlier
        tests too, and takes 30 ms once it is full.
        """
        made, counts = dict(self._group.journal.made), self._group.counts()
        issued = {count.name: count.collectives for count in counts if count.collectives}
        if (made, issued) == self._settled:
            return (), self._done
        recorded = self._group.journal.is_recorded
        groups = {count.name: count for count in counts if recorded(count.name)}
        journal = self._group.journal
        python = (*list(journal.forms), *list(journal.calls))
        calls = {(call.group, call.number): call for call in python}
        entries = [entry for entry in self._records() if entry["process_group"][0] in groups]
        retired: dict[str, deque[dict[str, Any]]] = {}
        for entry in entries:
            if entry["retired"]:
                name = entry["process_group"][0]
                retired.setdefault(name, deque(maxlen=_DONE)).append(entry)

        def wait(entry: dict[str, Any]) -> PendingOperation:
            name, number = entry["process_group"][0], entry["collective_seq_id"]
            return self._wait(entry, groups[name], calls.get((name, number)))

        begun = tuple(wait(entry) for entry in entries if not entry["retired"])
        self._done = tuple(map(wait, itertools.chain.from_iterable(retired.values())))
        # A collective that has a number but no entry yet is missing in ``last``.
        last = {wait.group: wait.number for wait in self._done}
        if not begun and last == issued:
            self._settled = made, issued
        return begun, self._done

    def _records(self) -> Iterator[dict[str, Any]]:
        """The flight recorder's entries of this test's collectives, on groups that exist."""
        if _dump is None or not is_initialized():
            return
        made = self._group.journal.made
        # Safe to unpickle: this process has just pickled it.
        for entry in pickle.loads(_dump(True, False, False))["entries"]:
            since = max(self._clock, made.get(entry["process_group"][0], 0))
            if not entry["is_p2p"] and entry["time_created_ns"] >= since:
                yield entry

    def _wait(
        self, entry: dict[str, Any], group: GroupCount, call: Operation | None
    ) -> PendingOperation:
        number = entry["collective_seq_id"] - self._group.journal.issued_before(group.name)
        return PendingOperation(
            group=group.name,
            members=group.members,
            number=number,
            operation=operation_of(entry) if call is None else call.name,
            recorded_as=_recorded_as(entry),
            numel=_elements(entry),
            dtype=_recorded_dtype(entry["input_dtypes"]),
            peer=None,
            tag=None,
            site=None if call is None else call.code_line,
            root=None if call is None or call.root is None else group.members[call.root],
            ends_in=left_of(entry),
            nth=group.nth,
        )

    def _message(self, call: Operation) -> PendingOperation | None:
        """The message that a thread waits for; None for a receive from any rank."""
        if call.root is None or call.root < 0 or call.tag is None:
            return None
        if not self._group.journal.is_recorded(call.group):
            return None
        group = self._group_of(call)
        if group is None:
            return None
        return PendingOperation(
            group=call.group,
            members=group.members,
            number=call.message_number,
            operation=call.name,
            recorded_as=None,
            numel=None,
            dtype=None,
            peer=group.members[call.root],
            tag=call.tag,
            site=call.code_line,
            ends_in=self._wait_timeouts.left_of_message(call),
            nth=group.nth,
        )


def _begun_messages(
    counts: dict[tuple[str, int, int], int], members: dict[str, tuple[int, ...]]
) -> Iterator[BegunMessages]:
    """The counts of the journal, with global ranks, on groups that exist."""
    for (group, peer, tag), count in dict(counts).items():
        if group in members:
            yield BegunMessages(group, peer if peer < 0 else members[group][peer], tag, count)


def operation_of(entry: dict[str, Any]) -> str:
    """The public name of the operation of a flight recorder's entry."""
    return public_name(_recorded_as(entry))


def _recorded_as(entry: dict[str, Any]) -> str:
    name: str = entry["profiling_name"]
    return name.partition(":")[2] or name


def _is_in_engine(frame: FrameType | None) -> bool:
    return frame is not None and any(part in frame.f_code.co_filename for part in _ENGINE)


def _outermost_call(stack: Sequence[FrameType]) -> FrameType | None:
    """The called function of torch.distributed, if its wait is in C++."""
    called: FrameType | None = None
    below = [*itertools.dropwhile(_is_of_groups, stack)]
    if not below or not below[0].f_code.co_filename.endswith(_WAITING):
        return None
    for frame in itertools.takewhile(_is_of_distributed, below):
        # Skip the wrapper that logs the call.
        called = called if frame.f_code.co_name == "wrapper" else frame
    return called


def _missing_store(stack: Sequence[FrameType]) -> str:
    """``host:port`` to which ``tcp://`` leads all ranks as clients, so that no rank serves it."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
        return ""
    frame = next(itertools.dropwhile(_is_of_groups, stack), None)
    if frame is None or frame.f_code.co_name != "_create_c10d_store":
        return ""
    return "{hostname}:{port}".format_map(frame.f_locals)


def _is_of_groups(frame: FrameType) -> bool:
    """Whether a frame is ours, between torch's Python and C++."""
    return "/pytest_ddp/rank/groups/" in frame.f_code.co_filename or is_of_stream(frame)


def _listed(ranks: list[int] | None) -> str:
    if ranks is None:
        return "all ranks"
    more = ", ..." if len(ranks) > _MANY else ""
    return f"ranks {', '.join(map(str, ranks[:_MANY]))}{more}"


def _is_joining(frame: FrameType | None) -> bool:
    """Whether the main thread sleeps until another thread acts."""
    return frame is not None and frame.f_code.co_filename.endswith(_JOINING)


def _is_of_distributed(frame: FrameType) -> bool:
    return "torch/distributed/" in frame.f_code.co_filename


def _activity(thread: int | None = None) -> tuple[str, str]:
    """State letter of a thread, by default of the main one, and its processor time."""
    pid = os.getpid()  # also the thread id of the main thread, even after a fork
    try:
        stat = processes.read(f"/proc/{pid}/task/{thread or pid}/stat").decode(errors="replace")
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
    """The first dtype by its Python name; the recorder has ``Float`` for float32."""
    return DTYPE_NAMES.get(names[0], names[0]) if names else None


def _elements(entry: dict[str, Any]) -> int | None:
    sizes = entry["input_sizes"]
    return sum(map(math.prod, sizes)) if sizes else None
