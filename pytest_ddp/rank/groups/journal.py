"""Journal of a rank's calls on its process groups from Python.

torch's flight recorder sees every collective, but neither the reduce operation nor sends and
receives on gloo, nor (at low cost) the calling line. This journal wraps the methods of
``ProcessGroup``, below torch's Python functions, so that neither they nor torch.compile notice it.
It does not see collectives that C++ issues without Python (DDP's reducer); functional collectives
are recorded by :mod:`pytest_ddp.rank.groups.functional`.
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

from pytest_ddp.rank.groups.backends import NO_PROMISES, Promises, promises_of
from pytest_ddp.rank.groups.forked_waits import ForkedWaits
from pytest_ddp.rank.groups.message_history import MessageHistory
from pytest_ddp.rank.operations.operation import KEPT, Operation, Site, name_of
from pytest_ddp.rank.operations.origins import called_by_user, user_frame
from pytest_ddp.rank.operations.pieces import Pieces, dtype_of, piece_of, reader_of
from pytest_ddp.rank.operations.table import BY_METHOD, Form
from pytest_ddp.rank.operations.works import OpenMessages, OperationsByWork
from pytest_ddp.system.stdlib import threading, time, zlib

_MONITORED = "monitored_barrier"

_PATIENCE = 0.05
"""Seconds to wait for another thread to begin its message, which is immediate as a rule."""


class CallJournal:
    """Wraps the methods of ``ProcessGroup`` for the life of the rank."""

    def __init__(self) -> None:
        self.made: dict[str, int] = {}
        """When each group was made (``time.time_ns``), by name: names are used again after the
        default group was destroyed."""
        self.asked_for: set[str] = set()
        """Names of groups that user code has made; the others were made by a library."""
        self.root = ""
        """Folder of files that are the same on another machine, under another root there."""
        self.on_new_group: list[Callable[[dist.ProcessGroup], None]] = []
        """Called with each group that is made."""
        self._before: dict[str, int] = {}
        """Collectives that each group had seen when the test began."""
        """Collectives issued on each group before the current test."""
        self._messages: Counter[str] = Counter()
        """Sends and receives on each group since it was made: gloo numbers them as it does
        collectives."""
        self._unnumbered: Counter[str] = Counter()
        """Collectives called from Python on groups whose backend does not number them."""
        self._promises: dict[str, Promises] = {}
        """By group name, from the first look-up on."""
        self.sent: Counter[tuple[str, int, int]] = Counter()
        """Messages sent in this test, by group, receiver and tag."""
        self.received: Counter[tuple[str, int, int]] = Counter()
        """Receives begun in this test, by group, sender and tag; -1 means any sender."""
        self.wide: Counter[tuple[str, str, int, int]] = Counter()
        """Those of ``sent`` and ``received`` that fixtures wider than the test began in their
        set-up, by operation and the same key."""
        self.sites: dict[tuple[str, str, int, int], Site] = {}
        """Where the last message with each key was begun."""
        self.messages = MessageHistory()
        self.open = OpenMessages()
        self.beside = False
        """Whether threads other than the main one have begun messages in this test."""
        self.has_refused = False
        """Whether torch has refused a message in this test."""
        self._beginning = 0
        """Messages that are counted here and perhaps not yet in torch's sequence number."""
        self._lock = threading.RLock()
        """Held while messages are counted, as several threads may begin some."""
        self._none_begins = threading.Condition(self._lock)
        self._main = threading.main_thread().ident
        self.calls: deque[Operation] = deque(maxlen=KEPT)
        self.forms: deque[Operation] = deque(maxlen=KEPT)
        """Functional collectives that were issued: Python does not wait for them by ``Work``."""
        self.what: dict[str, int] = {}
        """Digest of this test's collectives, by group: operation, size, dtype, and so on."""
        self.where: dict[str, int] = {}
        """The same for the calling lines, and for sizes that may legally differ."""
        self._shapes: dict[tuple[Any, ...], _CallShape] = {}
        self.waiting: dict[int, Operation] = {}
        """The call that each thread waits for right now, by thread identifier."""
        self.forked = ForkedWaits(self.made)
        self.failed: set[str] = set()
        """Groups on which a wait ended in an error during this test, for example by a timeout:
        torch does not use their connections again."""
        self._by_work = OperationsByWork()
        for method, form in BY_METHOD.items():
            if form.name != _MONITORED:
                self._wrap(method, (self._message if form.is_message else self._collective)(form))
        self._wrap_naming()
        self._wrap_wait()
        self._wrap_monitored_barrier()

    def begin(self, groups: Iterable[dist.ProcessGroup] = ()) -> None:
        """Start a new test: drop the calls of the last one, and count anew on existing groups."""
        for record in (self.sent, self.received, self.what, self.where, self.calls, self.forms):
            record.clear()
        self.wide.clear()
        self.sites.clear()
        self.messages.clear()
        self.open.clear()
        self.beside = self.has_refused = False
        self._shapes.clear()
        self.failed.clear()
        self.forked.clear()
        self._before = {name_of(group): self.collectives(group) for group in groups}

    def before(self, name: str) -> int:
        """Collectives issued on the group of this name before the current test."""
        return self._before.get(name, 0)

    def collectives(self, group: dist.ProcessGroup) -> int:
        """How many collectives were issued on a group since it was made, from Python and C++."""
        return self._collectives(group, name_of(group))

    def operations(self, group: dist.ProcessGroup) -> int:
        """How many collectives, sends and receives were issued on a group since it was made.

        Where the backend has no sequence numbers, only calls from Python are counted.
        """
        name = name_of(group)
        promises = self.promises(group, name)
        if promises.messages_numbered:
            return _issued(group)
        collectives = _issued(group) if promises.numbered else self._unnumbered.get(name, 0)
        return collectives + self._messages.get(name, 0)

    def promises(self, group: dist.ProcessGroup, name: str) -> Promises:
        """What can be relied on for the operations of ``group``, which has the name ``name``."""
        known = self._promises.get(name)
        if known is None:
            known = self._promises[name] = promises_of(group)
        return known

    def is_recorded(self, name: str) -> bool:
        """Whether hangs can be proved on a group, once its number has been looked up."""
        return self._promises.get(name, NO_PROMISES).recorded

    def _collectives(self, group: dist.ProcessGroup, name: str) -> int:
        """As :meth:`collectives`; 0 on all ranks where the backend has no sequence numbers."""
        promises = self.promises(group, name)
        if not promises.numbered:
            return 0
        if not promises.messages_numbered:
            return _issued(group)
        with self._lock:
            if self._beginning:
                # A message that is counted here but not yet by torch would make the result too low.
                self._none_begins.wait_for(lambda: not self._beginning, _PATIENCE)
            # Not by []: for a missing key, that calls the Python function Counter.__missing__.
            return _issued(group) - self._messages.get(name, 0)

    def _wrap(self, method: str, note: Callable[..., Operation]) -> None:
        original = getattr(dist.ProcessGroup, method, None)
        if original is None:  # missing in an older or newer torch
            return

        # A frame of ours: a TransparentWrapper would not see the arguments. torch's Python
        # functions, which warn and log, are callers of it; below it is only C++.
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
            by_user = called_by_user(_getframe(1))
            (self.asked_for.add if by_user else self.asked_for.discard)(name)
            original(group, name)
            for greet in self.on_new_group:
                greet(group)

        group_type._set_group_name = set_group_name

    def _begin_group(self, name: str) -> None:
        """Forget the earlier group of this name; torch names each group once, when it is made."""
        self.made[name] = time.time_ns()
        self.forked.inherited.discard(name)
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
        self.messages.forget(name)
        self.wide = Counter({key: n for key, n in self.wide.items() if key[1] != name})
        # New deques, as the side thread may be reading the old ones.
        self.calls = deque((call for call in self.calls if call.group != name), maxlen=KEPT)
        self.forms = deque((call for call in self.forms if call.group != name), maxlen=KEPT)

    def _wrap_wait(self) -> None:
        original: Any = dist.Work.wait

        def wait(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
            call = self._by_work.get(work)
            if call is None:
                return original(work, *args, **kwargs)
            self._begin_wait(_limited(call, *args, **kwargs) if args or kwargs else call)
            try:
                return original(work, *args, **kwargs)
            except RuntimeError:
                self.failed.add(call.group)
                raise
            finally:
                self._end_wait(call)
                if call.tag is not None:
                    self.open.close(call)

        work_type: Any = dist.Work
        work_type.wait = wait

    def _wrap_monitored_barrier(self) -> None:
        group_type: Any = dist.ProcessGroup
        original = group_type.monitored_barrier

        def monitored_barrier(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            # gloo builds it from messages, and rank 0 has more of them than the others.
            name, before = name_of(group), self.operations(group)
            call = Operation(
                group=name,
                number=0,
                name=_MONITORED,
                numel=None,
                dtype=None,
                reduce_op=None,
                root=None,
                tag=None,
                site=_site(_calling_frame()),
            )
            self._begin_wait(call)
            try:
                return original(group, *args, **kwargs)
            except RuntimeError:
                self.failed.add(name)
                raise
            finally:
                self._end_wait(call)
                self._messages[name] += self.operations(group) - before

        group_type.monitored_barrier = monitored_barrier

    def _begin_wait(self, call: Operation) -> None:
        self.waiting[threading.get_ident()] = call
        if call.group in self.forked.inherited:
            self.forked.begin(call)

    def _end_wait(self, call: Operation) -> None:
        self.waiting.pop(threading.get_ident(), None)
        if call.group in self.forked.inherited:
            self.forked.end()

    def _collective(self, form: Form) -> Callable[..., Operation]:
        operation, position, pieces = form.name, form.size, reader_of(form)

        def note(
            group: dist.ProcessGroup, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Operation:
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
            frame = _calling_frame()
            code = frame.f_code  # kept alive by the shape's site, so that its id stays unique
            where = (id(code), frame.f_lasti, sends, receives)
            key = (operation, numel, dtype, hash(reduce_op), root, where)
            if (shape := self._shapes.get(key)) is None:
                what = (operation, numel, dtype, _name(reduce_op), root)
                shape = _CallShape.of(what, _site(frame), self.root, (sends, receives))
                self._shapes[key] = shape
            self.what[name] = _fold(self.what.get(name, 0), step, shape.what)
            self.where[name] = _fold(self.where.get(name, 0), step, shape.where)
            return _new_call(Operation, (name, number, *shape.rest))

        return note

    def functional(self, form: Form) -> Callable[..., Callable[[], None]]:
        """A function to call before a functional collective; call its result after the issue."""
        note = self._collective(form)

        def noted(group: dist.ProcessGroup, args: tuple[Any, ...]) -> Callable[[], None]:
            return partial(self.forms.append, note(group, args, {}))

        return noted

    def _next(self, group: dist.ProcessGroup, name: str) -> tuple[int, int]:
        """The number of the next collective, and its step for the digests.

        Where the backend has no sequence numbers the number is 0, so that nothing is concluded
        from it; the digests still show whether the ranks left the group in step.
        """
        if self.promises(group, name).numbered:
            number = self._collectives(group, name) + 1
            return number, number
        self._unnumbered[name] += 1
        return 0, self._unnumbered[name]

    def _message(self, form: Form) -> Callable[..., Operation]:
        def note(
            group: dist.ProcessGroup, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Operation:
            peer, tag = _ends(args, kwargs)
            piece = piece_of(args[0] if args else kwargs.get("tensors"))
            return Operation(
                group=name_of(group),
                number=0,
                name=form.name,
                numel=None,
                dtype=None,
                reduce_op=None,
                root=peer,
                tag=tag,
                site=_site(_calling_frame()),
                sends=piece if form.name == "send" else (),
                receives=piece if form.name == "recv" else (),
            )

        return note

    @contextlib.contextmanager
    def _message_begins(self, call: Operation) -> Iterator[None]:
        assert call.root is not None
        assert call.tag is not None
        key = call.group, call.root, call.tag
        counts = self.sent if call.name == "send" else self.received
        self.beside |= threading.get_ident() != self._main
        with self._lock:
            self._beginning += 1
            self._messages[call.group] += 1
            counts[key] += 1
            self.sites[call.name, *key] = call.site
            self.messages.begin(call)
        begun = False
        try:
            yield
            begun = True
        finally:
            with self._lock:
                self._beginning -= 1
                self._none_begins.notify_all()
                if not begun:  # torch raised, and did not number it
                    self._messages[call.group] -= 1
                    counts[key] -= 1
                    self.messages.refuse(call)
                    self.has_refused = True

    @contextlib.contextmanager
    def of_wide_fixture(self) -> Iterator[None]:
        """Attribute the messages of a block to a fixture that is wider than the test."""
        before, wide = self._begun(), self.wide
        try:
            yield
        finally:
            # Assigned, not added: they include those of fixtures that this fixture requested.
            self.wide = wide + (self._begun() - before)

    def _begun(self) -> Counter[tuple[str, str, int, int]]:
        """Sends and receives of this test so far, by operation, group, peer and tag."""
        both = (("send", self.sent), ("recv", self.received))
        return Counter({(op, *key): n for op, counts in both for key, n in dict(counts).items()})


def _issued(group: Any) -> int:
    """Operations issued on a group since it was made, by its sequence number."""
    issued: int = group._get_sequence_number_for_group()
    return issued


class _CallShape(NamedTuple):
    """What calls with the same arguments from the same place have in common.

    A loop repeats it: a look-up takes a third of the time of building it anew.
    """

    rest: tuple[Any, ...]
    """The fields of :class:`Operation` after the number."""
    what: int
    where: int

    @classmethod
    def of(cls, what: tuple[Any, ...], site: Site, root: str, pieces: Pieces) -> _CallShape:
        place = (site.code.co_filename.removeprefix(root), site.line, *pieces)
        return cls((*what, None, site, None, *pieces), _checksum(what), _checksum(place))


_NO_PIECES: Pieces = ((), ())

_new_call = tuple.__new__
"""The named tuple's own constructor takes twice as long."""


def _checksum(values: tuple[Any, ...]) -> int:
    """A checksum that is the same in all processes, unlike ``hash``."""
    return zlib.crc32(repr(values).encode(errors="surrogateescape"))


def _fold(digest: int, number: int, code: int) -> int:
    """The next digest of a sequence, an FNV hash (Fowler, Noll, Vo)."""
    return ((digest ^ code) * 0x01000193 + number) & 0xFFFFFFFF


def _limited(call: Operation, timeout: Any = None) -> Operation:
    """The call with the timeout given to ``wait``; torch takes zero for no timeout."""
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


def _calling_frame() -> FrameType:
    """The frame of user code that led to the wrapped method."""
    found = user_frame(_getframe(2))
    assert found is not None
    return found


def _ends(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """Peer and tag from the arguments of ``ProcessGroup``'s methods; -1 for a receive from any."""
    if len(args) == 3:
        return args[1], args[2]
    given = dict(zip(("tensors", "peer", "tag"), args, strict=False)) | kwargs
    if "peer" in given and len(given) == 2:
        return -1, given["peer"]
    peer = given.get("peer", given.get("dstRank", given.get("srcRank", -1)))
    return peer, given.get("tag", 0)


def _site(frame: FrameType) -> Site:
    return Site(frame.f_code, frame.f_lineno)
