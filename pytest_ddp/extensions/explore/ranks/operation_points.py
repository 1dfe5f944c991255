"""Points and tokens of communication: a subscriber of the stream of operations.

A completed collective takes the tokens of the members on whom it depends *on every schedule and
backend*: of a broadcast that is the root, whatever way gloo's messages go. What is not announced,
such as the end of what C++ has issued, orders nothing.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from pytest_ddp.extensions.explore.ranks.accesses import FROM_ANY, Access, Thing, ThingKind
from pytest_ddp.extensions.explore.ranks.board import Board, Field
from pytest_ddp.extensions.explore.ranks.recording import Recording
from pytest_ddp.rank.operations.operation import Issuer, Operation
from pytest_ddp.rank.operations.stream import Needs, Operations
from pytest_ddp.rank.operations.table import NeedRule

_OF_ALL = frozenset({"all_reduce", "all_gather", "reduce_scatter", "monitored_barrier"})
"""Operations whose forms all need the data of all, whatever gloo sends for them."""


class OperationPoints:
    """The points at which a rank communicates in one run."""

    def __init__(self, recording: Recording, board: Board | None) -> None:
        self._recording = recording
        self._board = board
        self._collectives: Counter[str] = Counter()
        """The number of collectives that this rank has begun, by group."""
        self._messages: Counter[tuple[str, int, int, int]] = Counter()
        """The number of this rank's sends and receives, by group, sender, receiver and tag."""
        self._doubtful: set[tuple[str, int]] = set()
        """Groups and tags of this rank's receives from any: what comes later may be another's."""
        self._takes: MutableMapping[Operation, tuple[str, ...]] = WeakKeyDictionary()

    def before(self, operation: Operation) -> None:
        name = operation.name
        if operation.issuer is Issuer.FIXTURE:
            self._recording.point(name, gives=self._begin_exchange, communicates=True)
        elif operation.form.is_message:
            self._recording.point(
                name,
                lambda: self._mailbox(operation),
                lambda: self._begin_message(operation),
                communicates=True,
            )
        else:
            given = functools.partial(self._begin_collective, operation)
            self._recording.point(name, gives=given, communicates=True)

    def returned(self, operation: Operation, work: Any, error: BaseException | None) -> None:
        if error is not None:
            return
        if operation.issuer is Issuer.FIXTURE:
            everyone = range(self._recording.world_size)
            number = self._recording.exchanges
            self._recording.note(takes=[_of_exchange(number, rank) for rank in everyone])
        elif operation.form.operation == _MONITORED:  # it has no Work
            self.waited(operation, None)

    def waited(self, operation: Operation, error: BaseException | None) -> None:
        takes = self._takes.pop(operation, ())
        if error is None and takes:
            self._recording.note(takes=takes)

    # ------------------------------------------------------------------ what is issued

    def _begin_exchange(self) -> list[str]:
        self._recording.exchanges += 1
        if self._board is not None:
            self._board.put(Field.EXCHANGES, self._recording.exchanges)
        return [_of_exchange(self._recording.exchanges, self._recording.rank)]

    def _begin_collective(self, operation: Operation) -> list[str]:
        group = operation.group
        self._collectives[group] += 1
        number, own = self._collectives[group], self._recording.rank
        members = _members(operation)
        others = [member for member in _needed(operation, members, own) if member != own]
        self._takes[operation] = tuple(_of_collective(group, number, other) for other in others)
        return [_of_collective(group, number, own)]

    def _begin_message(self, operation: Operation) -> list[str]:
        ends = self._ends(operation)
        if ends is None:
            return []
        sender, receiver = ends
        key = operation.group, operation.tag or 0
        if sender is None:
            self._doubtful.add(key)
            return []
        place = (operation.group, sender, receiver, operation.tag or 0)
        self._messages[place] += 1
        token = "message " + " ".join(map(str, (*place, self._messages[place])))
        if operation.name == "send":
            return [token]
        if key not in self._doubtful:
            self._takes[operation] = (token,)
        return []

    def _mailbox(self, operation: Operation) -> list[Access]:
        ends = self._ends(operation)
        if ends is None:
            return []
        sender, receiver = ends
        is_send = operation.name == "send"
        if sender is not None and not is_send:
            return []
        tag = f", tag {operation.tag}" if operation.tag else ""
        name = f"rank {receiver}{tag}"
        if len(_members(operation)) < self._recording.world_size:
            name += f" in group {operation.group}"
        mailbox = Thing(ThingKind.MAILBOX, name)
        return [Access(mailbox, changes=True, verb="sends to" if is_send else FROM_ANY)]

    def _ends(self, operation: Operation) -> tuple[int | None, int] | None:
        """The sender of a message, None for any, and its receiver; None if they are not known."""
        members, peer = _members(operation), operation.root
        if peer is None or peer >= len(members):
            return None
        other = None if peer < 0 else members[peer]
        own = self._recording.rank
        if operation.name == "send":
            return None if other is None else (own, other)
        return other, own


class _CurrentPoints:
    """Subscribed once in a rank, as the kernels that this needs take up to 20 ms to install; ranks
    that have explored run no other tests."""

    points: OperationPoints | None = None
    is_subscribed = False

    def before(self, operation: Operation) -> None:
        if self.points is not None:
            self.points.before(operation)

    def returned(self, operation: Operation, work: Any, error: BaseException | None) -> None:
        if self.points is not None:
            self.points.returned(operation, work, error)

    def waited(self, operation: Operation, error: BaseException | None) -> None:
        if self.points is not None:
            self.points.waited(operation, error)


_current = _CurrentPoints()


@contextlib.contextmanager
def watching_operations(operations: Operations, points: OperationPoints) -> Iterator[None]:
    """The points of operations are those of a run, in the block."""
    if not _current.is_subscribed:
        operations.subscribe(_current, Needs.CPP)
        _current.is_subscribed = True
    _current.points = points
    try:
        yield
    finally:
        _current.points = None


_MONITORED = "monitored_barrier"


def _of_exchange(number: int, rank: int) -> str:
    return f"ddp {number} {rank}"


def _of_collective(group: str, number: int, rank: int) -> str:
    return f"group {group} {number} {rank}"


def _members(operation: Operation) -> list[int]:
    """The global ranks of an operation's group; empty if torch's Python does not know the group."""
    try:
        found: list[int] = dist.get_process_group_ranks(operation.process_group)
    except (KeyError, ValueError):
        return []
    return found


def _needed(operation: Operation, members: Sequence[int], own: int) -> Sequence[int]:
    """The members without whose part an operation is complete on no schedule."""
    rule, root = operation.form.needs, operation.root
    if rule is NeedRule.UNKNOWN and operation.form.operation in _OF_ALL:
        rule = NeedRule.ALL if operation.name == _MONITORED else NeedRule.ALL_WITH_DATA
    if rule in (NeedRule.ALL_WITH_DATA, NeedRule.REDUCE) and not operation.nbytes:
        return ()
    if rule in (NeedRule.ALL, NeedRule.ALL_WITH_DATA, NeedRule.ALL_WITHOUT_DATA):
        return members
    if root is None or not 0 <= root < len(members):
        return ()
    is_root = members[root] == own
    if rule in (NeedRule.GATHER, NeedRule.REDUCE):
        return members if is_root else ()
    if rule in (NeedRule.BROADCAST, NeedRule.SCATTER):
        return () if is_root else (members[root],)
    return ()
