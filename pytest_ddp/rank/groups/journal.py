"""Journal of the operations that Python and functional collectives issue on a rank's groups.

torch's flight recorder sees every collective, but neither the reduce operation nor sends and
receives on gloo, nor (at low cost) the calling line. Of collectives that C++ issues without Python
(DDP's reducer), the journal has the numbers of their groups alone.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch.distributed as dist

from pytest_ddp.rank.groups.backends import NO_PROMISES, Promises, promises_of
from pytest_ddp.rank.groups.forked_waits import ForkedWaits
from pytest_ddp.rank.groups.message_history import MessageHistory
from pytest_ddp.rank.operations.operation import KEPT, Issuer, Operation, Site, name_of
from pytest_ddp.rank.operations.stream import Operations, Recorder
from pytest_ddp.system.stdlib import threading, time

_PYTHON = Issuer.PYTHON

_PATIENCE = 0.05
"""Seconds to wait for another thread to begin its message, which is immediate as a rule."""


class CallJournal(Recorder):
    """Records operations for the life of the rank."""

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        operations.record(self)
        self.made: dict[str, int] = {}
        """When each group was made (``time.time_ns``), by name: names are used again after the
        default group was destroyed."""
        self.asked_for: set[str] = set()
        """Names of groups that user code has made; the others were made by a library."""
        self._before: dict[str, int] = {}
        """Collectives issued on each group before the current test."""
        self._messages: Counter[str] = Counter()
        """Sends and receives on each group since it was made: gloo numbers them as it does
        collectives."""
        self._unnumbered: Counter[str] = Counter()
        """Collectives called from Python on groups whose backend does not number them."""
        self._promises: dict[str, Promises] = {}
        """Promises of backends by group name, from the first look-up on."""
        self.sent: Counter[tuple[str, int, int]] = Counter()
        """Messages sent in this test, by group, receiver and tag."""
        self.received: Counter[tuple[str, int, int]] = Counter()
        """Receives begun in this test, by group, sender and tag; -1 means any sender."""
        self.wide: Counter[tuple[str, str, int, int]] = Counter()
        """The counts among ``sent`` and ``received`` that fixtures wider than the test began in
        their set-up, by operation and the same key."""
        self.sites: dict[tuple[str, str, int, int], Site] = {}
        """The line that began the last message, by operation, group, peer and tag."""
        self.messages = MessageHistory()
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
        """Digest of the calling lines, by group, and of sizes that may legally differ."""
        self._counted: dict[int, int] = {}
        """Operations on the group before a ``monitored_barrier``, by the thread that is in the
        barrier."""
        self.forked = ForkedWaits(self.made)
        self.failed: set[str] = set()
        """Groups on which a wait ended in an error during this test, for example by a timeout:
        torch does not use their connections again."""

    def begin(self, groups: Iterable[dist.ProcessGroup] = ()) -> None:
        """Start a new test: drop the calls of the last one, and count anew on existing groups."""
        for record in (self.sent, self.received, self.what, self.where, self.calls, self.forms):
            record.clear()
        self.wide.clear()
        self.sites.clear()
        self.messages.clear()
        self.operations.begin()
        self.beside = self.has_refused = False
        self.failed.clear()
        self.forked.clear()
        self._before = {name_of(group): self.collectives(group) for group in groups}

    def issued_before(self, name: str) -> int:
        """Collectives issued on the group of this name before the current test."""
        return self._before.get(name, 0)

    def collectives(self, group: dist.ProcessGroup) -> int:
        """How many collectives were issued on a group since it was made, from Python and C++."""
        return self._collectives(group, name_of(group))

    def count(self, group: dist.ProcessGroup) -> int:
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
        """The number of collectives, as :meth:`collectives` has it; 0 on all ranks where the
        backend has no sequence numbers.
        """
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

    def group_begins(self, name: str, by_user: bool) -> None:
        """Forget the earlier group of this name; torch names each group once, when it is made."""
        (self.asked_for.add if by_user else self.asked_for.discard)(name)
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

    def before(self, operation: Operation) -> None:
        described = operation.described
        if described.tag is None:
            name = operation.group
            operation.number, step = self._next(operation.process_group, name)
            self.what[name] = _fold(self.what.get(name, 0), step, described.what)
            self.where[name] = _fold(self.where.get(name, 0), step, described.where)
        else:
            self._message_begins(operation)
        if operation.issuer is _PYTHON:
            self.calls.append(operation)

    def returned(self, operation: Operation, error: BaseException | None) -> None:
        if operation.described.tag is not None:
            self._message_has_begun(operation, is_refused=error is not None)
        elif operation.issuer is not _PYTHON and error is None:
            self.forms.append(operation)

    def waits(self, operation: Operation) -> None:
        group = operation.process_group
        if group is not None:  # monitored_barrier: rank 0 has more messages in it than the others
            self._counted[threading.get_ident()] = self.count(group)
        if operation.group in self.forked.inherited:
            self.forked.begin(operation)

    def waited(self, operation: Operation, error: BaseException | None) -> None:
        group = operation.process_group
        if group is not None:
            before = self._counted.pop(threading.get_ident())
            self._messages[operation.group] += self.count(group) - before
        if isinstance(error, RuntimeError):
            self.failed.add(operation.group)
        if operation.group in self.forked.inherited:
            self.forked.end()

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

    def _message_begins(self, message: Operation) -> None:
        assert message.root is not None
        assert message.tag is not None
        assert message.site is not None
        key = message.group, message.root, message.tag
        counts = self.sent if message.name == "send" else self.received
        self.beside |= threading.get_ident() != self._main
        with self._lock:
            self._beginning += 1
            self._messages[message.group] += 1
            counts[key] += 1
            message.message_number = counts[key]
            self.sites[message.name, *key] = message.site
            self.messages.begin(message)

    def _message_has_begun(self, message: Operation, *, is_refused: bool) -> None:
        with self._lock:
            self._beginning -= 1
            self._none_begins.notify_all()
            if is_refused:  # torch raised, and did not number it
                assert message.root is not None
                assert message.tag is not None
                counts = self.sent if message.name == "send" else self.received
                self._messages[message.group] -= 1
                counts[message.group, message.root, message.tag] -= 1
                self.messages.refuse(message)
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


def _fold(digest: int, number: int, code: int) -> int:
    """The next digest of a sequence, an FNV hash (Fowler, Noll, Vo)."""
    return ((digest ^ code) * 0x01000193 + number) & 0xFFFFFFFF
