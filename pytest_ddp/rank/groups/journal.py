"""What a rank asks of its process groups from Python, call by call.

torch's flight recorder sees every collective, but neither the reduce operation nor
sends and receives on gloo, nor (cheaply) the line that asked. This journal sits on the
methods of ``ProcessGroup``, below torch's Python functions, so that neither they nor
torch.compile notice it; what C++ issues by itself (DDP's reducer) passes it by, and
functional collectives come by way of :mod:`pytest_ddp.rank.groups.functional`.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from sys import _getframe
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from pytest_ddp.rank.groups.backends import NONE, Promises, name_of, promises_of
from pytest_ddp.rank.groups.calls import KEPT, Call, CallsByWork, OpenMessages, Site
from pytest_ddp.rank.groups.origins import asked_by_user, user_frame
from pytest_ddp.rank.groups.pieces import PIECES, Pieces, dtype_of
from pytest_ddp.system.own import threading, time, zlib

_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
    "barrier": "barrier",
}
"""Methods of ``ProcessGroup`` by the name that users call them by."""

_SAME_SIZE = {
    "all_reduce": 0,
    "broadcast": 0,
    "reduce": 0,
    "gather": 1,
    "scatter": 0,
    "all_gather_into_tensor": 1,
    "reduce_scatter_tensor": 0,
}
"""Operations whose tensors must be alike on all ranks, and which argument tells.

The list forms of other operations and all_to_all may be uneven; of those it is noted what goes
between each two ranks. Of gather and scatter it is the tensor that each rank has, not the list of
one: gloo fills a part of it without an error.
"""

_PATIENCE = 0.05
"""Seconds to wait for another thread to begin its message, which takes torch no time as a rule."""

_MESSAGES = {"send": "send", "recv": "recv", "recv_anysource": "recv"}


class Journal:
    """Wraps the methods of ``ProcessGroup`` for the life of the rank."""

    def __init__(self) -> None:
        self.made: dict[str, int] = {}
        """When the group of each name was made, by ``time.time_ns``: names are used again
        after the default group was destroyed."""
        self.asked_for: set[str] = set()
        """Groups that the user's own code has made, by name; the others are a library's."""
        self.root = ""
        """Where files lie that are the same on another machine, below a root of its own."""
        self.greeters: list[Callable[[dist.ProcessGroup], None]] = []
        """Called with each group that is made."""
        self._before: dict[str, int] = {}
        """Collectives that each group had seen when the test began."""
        self._messages: Counter[str] = Counter()
        """Sends and receives on each group since it was made: gloo numbers them like
        collectives, which they are not."""
        self._unnumbered: Counter[str] = Counter()
        """Collectives that Python has asked for on groups whose backend gives them no numbers."""
        self._promises: dict[str, Promises] = {}
        """Of each group by name, from when it is first asked for."""
        self.sent: Counter[tuple[str, int, int]] = Counter()
        """Messages of this test by group, receiver and tag."""
        self.received: Counter[tuple[str, int, int]] = Counter()
        """Receives of this test that were begun, by group, sender and tag; -1 is any sender."""
        self.wide: Counter[tuple[str, str, int, int]] = Counter()
        """Those of both that fixtures wider than the test began in their set-up, by operation
        and as above."""
        self.sites: dict[tuple[str, str, int, int], Site] = {}
        """Where the last message of each kind was begun."""
        self.open = OpenMessages()
        self.beside = False
        """Whether threads beside the main one have begun messages in this test."""
        self._beginning = 0
        """Messages that are counted here and perhaps not yet by torch."""
        self._lock = threading.RLock()
        """Held to count messages, of which several threads may begin some."""
        self._none_begins = threading.Condition(self._lock)
        self._main = threading.main_thread().ident
        self.calls: deque[Call] = deque(maxlen=KEPT)
        self.forms: deque[Call] = deque(maxlen=KEPT)
        """Functional collectives that were issued: no call of Python waits for them."""
        self.what: dict[str, int] = {}
        """Digest of the collectives of this test by group: what was asked."""
        self.where: dict[str, int] = {}
        """The same for the lines that asked, and for sizes that may legally differ."""
        self._questions: dict[tuple[Any, ...], _Question] = {}
        self.waiting: dict[int, Call] = {}
        """What each thread waits for right now, by thread identifier."""
        self.failed: set[str] = set()
        """Groups of which a wait ended in an error during this test, as by a timeout: torch
        does not use their connections again."""
        self._by_work = CallsByWork()
        for method, operation in _COLLECTIVES.items():
            self._wrap(method, self._collective(operation))
        for method, operation in _MESSAGES.items():
            self._wrap(method, self._message(operation))
        self._wrap_naming()
        self._wrap_wait()
        self._wrap_monitored_barrier()

    def begin(self, groups: Iterable[dist.ProcessGroup] = ()) -> None:
        """Forget the calls of the last test, and count anew on the groups that there are."""
        for record in (self.sent, self.received, self.what, self.where, self.calls, self.forms):
            record.clear()
        self.wide.clear()
        self.sites.clear()
        self.open.clear()
        self.beside = False
        self._questions.clear()
        self.failed.clear()
        self._before = {name_of(group): self.collectives(group) for group in groups}

    def before(self, name: str) -> int:
        """Collectives that the group of this name had seen when the test began."""
        return self._before.get(name, 0)

    def collectives(self, group: dist.ProcessGroup) -> int:
        """How many collectives were issued on a group since it was made, from anywhere."""
        return self._collectives(group, name_of(group))

    def operations(self, group: dist.ProcessGroup) -> int:
        """How many collectives, sends and receives were issued on a group since it was made.

        Where the backend gives no numbers, those that Python asked for.
        """
        name = name_of(group)
        promises = self.promises(group, name)
        if promises.messages_numbered:
            return _issued(group)
        collectives = _issued(group) if promises.numbered else self._unnumbered.get(name, 0)
        return collectives + self._messages.get(name, 0)

    def promises(self, group: dist.ProcessGroup, name: str) -> Promises:
        """What holds for the operations of a group, whose name it is."""
        known = self._promises.get(name)
        if known is None:
            known = self._promises[name] = promises_of(group)
        return known

    def is_recorded(self, name: str) -> bool:
        """Whether waits may be proved of a group that has been asked for its number."""
        return self._promises.get(name, NONE).recorded

    def _collectives(self, group: dist.ProcessGroup, name: str) -> int:
        """As :meth:`collectives`; 0 for all ranks alike where the backend gives no numbers."""
        promises = self.promises(group, name)
        if not promises.numbered:
            return 0
        if not promises.messages_numbered:
            return _issued(group)
        with self._lock:
            if self._beginning:
                self._none_begins.wait_for(lambda: not self._beginning, _PATIENCE)
            # Not by [], which asks a Python function for what a Counter has not counted.
            return _issued(group) - self._messages.get(name, 0)

    def _wrap(self, method: str, note: Callable[..., Call]) -> None:
        original = getattr(dist.ProcessGroup, method, None)
        if original is None:  # an older or newer torch
            return

        def noted(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            call = note(group, args, kwargs)
            self.calls.append(call)
            if call.tag is None:
                work = original(group, *args, **kwargs)
            else:
                with self._message_begins(call):
                    work = original(group, *args, **kwargs)
            if work is not None:
                reference = self._by_work.put(work, call)
                if call.tag is not None:
                    self.open.add(call, reference)
            return work

        setattr(dist.ProcessGroup, method, noted)

    def _wrap_naming(self) -> None:
        group_type: Any = dist.ProcessGroup
        original = group_type._set_group_name

        def set_group_name(group: dist.ProcessGroup, name: str) -> None:
            self._begin_group(name)
            asked = asked_by_user(_getframe(1))
            (self.asked_for.add if asked else self.asked_for.discard)(name)
            original(group, name)
            for greet in self.greeters:
                greet(group)

        group_type._set_group_name = set_group_name

    def _begin_group(self, name: str) -> None:
        """Forget the group that had this name; torch names each group once, when it is made."""
        self.made[name] = time.time_ns()
        records: tuple[dict[str, int], ...]
        records = self._before, self._messages, self.what, self.where
        for record in records:
            record.pop(name, None)
        self.failed.discard(name)
        self._promises.pop(name, None)
        self._unnumbered.pop(name, None)
        for messages in (self.sent, self.received):
            for key in [key for key in messages if key[0] == name]:
                del messages[key]
        self.wide = Counter({key: n for key, n in self.wide.items() if key[1] != name})
        # A new one, because the side thread may be reading the old one.
        self.calls = deque((call for call in self.calls if call.group != name), maxlen=KEPT)
        self.forms = deque((call for call in self.forms if call.group != name), maxlen=KEPT)

    def _wrap_wait(self) -> None:
        original: Any = dist.Work.wait

        def wait(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
            call = self._by_work.get(work)
            if call is None:
                return original(work, *args, **kwargs)
            thread = threading.get_ident()
            self.waiting[thread] = _limited(call, *args, **kwargs) if args or kwargs else call
            try:
                return original(work, *args, **kwargs)
            except RuntimeError:
                self.failed.add(call.group)
                raise
            finally:
                self.waiting.pop(thread, None)
                if call.tag is not None:
                    self.open.close(call)

        work_type: Any = dist.Work
        work_type.wait = wait

    def _wrap_monitored_barrier(self) -> None:
        group_type: Any = dist.ProcessGroup
        original = group_type.monitored_barrier

        def monitored_barrier(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            # gloo builds it of messages, of which rank 0 has more than the others.
            thread, name = threading.get_ident(), name_of(group)
            before = self.operations(group)
            none = (None,) * 5
            self.waiting[thread] = Call(name, 0, "monitored_barrier", *none, _site(_asking_frame()))
            try:
                return original(group, *args, **kwargs)
            except RuntimeError:
                self.failed.add(name)
                raise
            finally:
                self.waiting.pop(thread, None)
                self._messages[name] += self.operations(group) - before

        group_type.monitored_barrier = monitored_barrier

    def _collective(self, operation: str) -> Callable[..., Call]:
        position, pieces = _SAME_SIZE.get(operation), PIECES.get(operation)

        def note(group: dist.ProcessGroup, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
            name = name_of(group)
            number, step = self._next(group, name)
            options = args[-1] if args else kwargs.get("opts")
            numel, dtype = _size(args, position)
            sends, receives = _NO_PIECES
            if pieces is not None:
                sends, receives = pieces(group, args)
                dtype = dtype_of(sends)
            root = getattr(options, "rootRank", None)
            reduce_op = getattr(options, "reduceOp", None)
            frame = _asking_frame()
            code = frame.f_code  # which the question keeps, so that the number stays its own
            where = (id(code), frame.f_lasti, sends, receives)
            key = (operation, numel, dtype, hash(reduce_op), root, where)
            if (question := self._questions.get(key)) is None:
                asked = (operation, numel, dtype, _name(reduce_op), root)
                question = _Question.of(asked, _site(frame), self.root, (sends, receives))
                self._questions[key] = question
            self.what[name] = _fold(self.what.get(name, 0), step, question.what)
            self.where[name] = _fold(self.where.get(name, 0), step, question.where)
            return _new_call(Call, (name, number, *question.rest))

        return note

    def functional(self, operation: str) -> Callable[..., Callable[[], None]]:
        """What notes a functional collective before it is issued; the answer, once it is."""
        note = self._collective(operation)
        c10d: Any = dist.distributed_c10d

        def noted(name: str, args: tuple[Any, ...]) -> Callable[[], None]:
            group = c10d._resolve_process_group(name)
            return partial(self.forms.append, note(group, args, {}))

        return noted

    def _next(self, group: dist.ProcessGroup, name: str) -> tuple[int, int]:
        """The number of the next collective, and its step for the digests.

        Where the backend gives no numbers it has none, so that nothing is concluded from it; the
        digests still tell whether the ranks left the group in step.
        """
        if self.promises(group, name).numbered:
            number = self._collectives(group, name) + 1
            return number, number
        self._unnumbered[name] += 1
        return 0, self._unnumbered[name]

    def _message(self, operation: str) -> Callable[..., Call]:
        def note(group: dist.ProcessGroup, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
            peer, tag = _ends(args, kwargs)
            site = _site(_asking_frame())
            return Call(name_of(group), 0, operation, None, None, None, peer, tag, site)

        return note

    @contextlib.contextmanager
    def _message_begins(self, call: Call) -> Iterator[None]:
        assert call.root is not None
        assert call.tag is not None
        key = call.group, call.root, call.tag
        counts = self.sent if call.operation == "send" else self.received
        self.beside |= threading.get_ident() != self._main
        with self._lock:
            self._beginning += 1
            self._messages[call.group] += 1
            counts[key] += 1
            self.sites[call.operation, *key] = call.site
        begun = False
        try:
            yield
            begun = True
        finally:
            with self._lock:
                self._beginning -= 1
                self._none_begins.notify_all()
                if not begun:  # torch has refused it, and given it no number
                    self._messages[call.group] -= 1
                    counts[key] -= 1

    @contextlib.contextmanager
    def of_wide_fixture(self) -> Iterator[None]:
        """Note the messages of a block as those of a fixture that is wider than the test."""
        before, wide = self._begun(), self.wide
        try:
            yield
        finally:
            # Not added to: those of a fixture that this one has asked for are among them.
            self.wide = wide + (self._begun() - before)

    def _begun(self) -> Counter[tuple[str, str, int, int]]:
        """Sends and receives of this test, by operation, group, peer and tag."""
        both = (("send", self.sent), ("recv", self.received))
        return Counter({(op, *key): n for op, counts in both for key, n in dict(counts).items()})


def _issued(group: Any) -> int:
    """Operations of a group since it was made, by its own count."""
    issued: int = group._get_sequence_number_for_group()
    return issued


class _Question(NamedTuple):
    """What calls of one shape from one place have in common.

    A loop asks it again and again: to find it costs a third of working it out anew.
    """

    rest: tuple[Any, ...]
    """The fields of :class:`Call` after the number."""
    what: int
    where: int

    @classmethod
    def of(cls, asked: tuple[Any, ...], site: Site, root: str, pieces: Pieces) -> _Question:
        place = (site.code.co_filename.removeprefix(root), site.line, *pieces)
        return cls((*asked, None, site, None, *pieces), _checksum(asked), _checksum(place))


_NO_PIECES: Pieces = ((), ())

_new_call = tuple.__new__
"""A named tuple's own constructor takes twice as long."""


def _checksum(values: tuple[Any, ...]) -> int:
    """Alike in all processes."""
    return zlib.crc32(repr(values).encode(errors="surrogateescape"))


def _fold(digest: int, number: int, code: int) -> int:
    """The next digest of a sequence, in the manner of Fowler, Noll and Vo."""
    return ((digest ^ code) * 0x01000193 + number) & 0xFFFFFFFF


def _limited(call: Call, timeout: Any = None) -> Call:
    """The call, as one that ``wait(timeout)`` waits for; torch takes zero for no timeout."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else 0.0
    return call._replace(limit=seconds) if seconds > 0 else call


def _size(args: tuple[Any, ...], position: int | None) -> tuple[int | None, torch.dtype | None]:
    if position is None or len(args) <= position:
        return None, None
    tensor = args[position]
    if isinstance(tensor, list):
        tensor = tensor[0]
    return tensor.numel(), tensor.dtype


def _name(reduce_op: Any) -> str | None:
    return None if reduce_op is None else str(getattr(reduce_op, "op", reduce_op).name)


def _asking_frame() -> FrameType:
    """Where the user's code led here."""
    found = user_frame(_getframe(2))
    assert found is not None
    return found


def _ends(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """Peer and tag of a message, as ``ProcessGroup`` takes them; a receive from any has no peer."""
    if len(args) == 3:
        return args[1], args[2]
    given = dict(zip(("tensors", "peer", "tag"), args, strict=False)) | kwargs
    if "peer" in given and len(given) == 2:
        return -1, given["peer"]
    peer = given.get("peer", given.get("dstRank", given.get("srcRank", -1)))
    return peer, given.get("tag", 0)


def _site(frame: FrameType) -> Site:
    return Site(frame.f_code, frame.f_lineno)
