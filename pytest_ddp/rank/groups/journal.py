"""What a rank asks of its process groups from Python, call by call.

torch's flight recorder sees every collective, but neither the reduce operation nor
sends and receives on gloo, nor (cheaply) the line that asked. This journal sits on the
methods of ``ProcessGroup``, below torch's Python functions, so that neither they nor
torch.compile notice it; what C++ issues by itself (DDP's reducer, functional
collectives) passes it by.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from datetime import timedelta
from sys import _getframe
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from pytest_ddp.rank.groups.backends import NONE, Promises, name_of, promises_of
from pytest_ddp.rank.groups.calls import KEPT, Call, CallsByWork, Site
from pytest_ddp.rank.groups.origins import asked_by_user, user_frame
from pytest_ddp.system.own import threading, time, zlib

_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather_coalesced",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
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

The list forms of other operations and all_to_all may be uneven. Of gather and scatter it is the
tensor that each rank has, not the list of one: gloo fills a part of it without an error.
"""

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
        """Receives of this test that were begun, by group, sender and tag."""
        self.calls: deque[Call] = deque(maxlen=KEPT)
        self.what: dict[str, int] = {}
        """Digest of the collectives of this test by group: what was asked."""
        self.where: dict[str, int] = {}
        """The same for the lines that asked."""
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
        for record in (self.sent, self.received, self.what, self.where, self.calls):
            record.clear()
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
        # Not by [], which asks a Python function for what a Counter has not counted.
        messages = self._messages.get(name, 0) if promises.messages_numbered else 0
        return _issued(group) - messages

    def _wrap(self, method: str, note: Callable[..., Call]) -> None:
        original = getattr(dist.ProcessGroup, method, None)
        if original is None:  # an older or newer torch
            return

        def noted(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            call = note(group, args, kwargs)
            self.calls.append(call)
            work = original(group, *args, **kwargs)
            if work is not None:
                self._by_work.put(work, call)
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
        # A new one, because the side thread may be reading the old one.
        self.calls = deque((call for call in self.calls if call.group != name), maxlen=KEPT)

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
        position = _SAME_SIZE.get(operation)

        def note(group: dist.ProcessGroup, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
            name = name_of(group)
            number, step = self._next(group, name)
            options = args[-1] if args else kwargs.get("opts")
            numel, dtype = _size(args, position)
            root = getattr(options, "rootRank", None)
            reduce_op = getattr(options, "reduceOp", None)
            frame = _asking_frame()
            code = frame.f_code  # which the question keeps, so that the number stays its own
            key = (operation, numel, dtype, hash(reduce_op), root, id(code), frame.f_lasti)
            if (question := self._questions.get(key)) is None:
                asked = (operation, numel, dtype, _name(reduce_op), root)
                question = self._questions[key] = _Question.of(asked, _site(frame), self.root)
            self.what[name] = _fold(self.what.get(name, 0), step, question.what)
            self.where[name] = _fold(self.where.get(name, 0), step, question.where)
            return _new_call(Call, (name, number, *question.rest))

        return note

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
        counts = self.sent if operation == "send" else self.received

        def note(group: dist.ProcessGroup, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
            name = name_of(group)
            peer, tag = (args[1], args[-1]) if len(args) > 2 else (-1, args[-1])
            self._messages[name] += 1
            counts[name, peer, tag] += 1
            return Call(name, 0, operation, None, None, None, peer, tag, _site(_asking_frame()))

        return note


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
    def of(cls, asked: tuple[Any, ...], site: Site, root: str) -> _Question:
        place = (site.code.co_filename.removeprefix(root), site.line)
        return cls((*asked, None, site, None), _checksum(asked), _checksum(place))


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


def _site(frame: FrameType) -> Site:
    return Site(frame.f_code, frame.f_lineno)
