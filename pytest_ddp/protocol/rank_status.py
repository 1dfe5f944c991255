"""The part of the protocol about collectives: the status of ranks, and their calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SIDE_CHANNEL = "ddp"
"""Stands for a process group in waits for the fixture's operations; its members are all ranks."""


def group_words(name: str, members: tuple[int, ...], nth: int = 1) -> str:
    """A process group in words.

    Args:
        name: torch's name of it.
        members: global ranks, in group order.
        nth: its number among the groups of these members, from 1.
    """
    if name == "0":
        return "the default group"
    which = "the group" if nth == 1 else f"group {nth}"
    return f"{which} of ranks {', '.join(map(str, members))}"


@dataclass(frozen=True)
class CodeLine:
    """A line of code."""

    file: str
    line: int
    function: str = ""
    """The function of the line; empty if it is not known."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}{' in ' * bool(self.function)}{self.function}"


def phase_text(names: Iterable[str]) -> str:
    """A phase in words, ``call: warm-up: backward``, from the names of all, outermost first."""
    return ": ".join(names)


@dataclass(frozen=True)
class Probe:
    """Requests a rank's status. A side thread answers at once, unless the GIL is held."""

    test: int
    number: int


@dataclass(frozen=True)
class RequestCalls:
    """Requests the collectives of a test; sent if the digests of ranks differ."""

    test: int


@dataclass(frozen=True)
class PendingOperation:
    """A collective, a message or an operation of the ``ddp`` fixture that a rank has begun and
    that is not complete."""

    group: str
    members: tuple[int, ...]
    """Global ranks, in group order."""
    number: int
    """Number of the collective on its group in this test, from 1; for a message, its number among
    those with its direction, peer and tag."""
    operation: str
    """The public name: ``all_reduce``, ``send``, ``recv``, ``ddp.gather``."""
    recorded_as: str | None
    """The flight recorder's name for it; None if it has no record."""
    numel: int | None
    dtype: str | None
    peer: int | None
    """Global rank of the other end of a message."""
    tag: int | None
    site: CodeLine | None
    """The line of user code that called the operation; None if it is not known."""
    root: int | None = None
    """Global rank of the source or destination, for a collective that has one and was called from
    Python."""
    ends_in: float | None = None
    """Seconds until a timeout ends the operation, at least; None if no timeout was found."""
    nth: int = 1
    """The number of the group among those of the same members, from 1."""

    @property
    def group_words(self) -> str:
        """Its group in words."""
        return group_words(self.group, self.members, self.nth)

    def may_end_within(self, seconds: float) -> bool:
        """True if a timeout may end the operation within this time."""
        return self.ends_in is not None and self.ends_in < seconds


@dataclass(frozen=True)
class BegunMessages:
    """Sends, or receives, that a rank began in this test with one peer and one tag."""

    group: str
    peer: int
    """Global rank; -1 for receives from any rank."""
    tag: int
    count: int


@dataclass(frozen=True)
class MessageCounts:
    """Sends or receives that a rank began in a test, with one peer and one tag."""

    group: str
    members: tuple[int, ...]
    """Global ranks, as :class:`GroupCount` has them."""
    is_send: bool
    peer: int
    """Global rank; -1 for a receive from any rank."""
    tag: int
    """0 where the backend matches without tags."""
    count: int
    wide: int
    """How many of these messages fixtures wider than the test began in their set-up."""
    site: CodeLine
    """The line of user code that began the last of these messages."""


@dataclass(frozen=True)
class MessageShape:
    """What messages of a rank have in common that one line of one thread began."""

    group: str
    is_send: bool
    peer: int
    """Global rank; -1 for a receive from any rank."""
    tag: int
    """0 where the backend matches without tags."""
    elements: int
    """The number of elements that are sent, or for which there is room."""
    dtype: str
    site: CodeLine
    """The line of user code."""
    thread: int
    """Identifier of the thread."""


@dataclass(frozen=True)
class Dropped:
    """A send or receive by gloo whose handle was gone before anything waited for it."""

    is_send: bool
    peer: int
    """Global rank; -1 for any sender."""
    site: CodeLine
    """The line of user code."""


@dataclass(frozen=True)
class Traffic:
    """All sends and receives that a rank began in a test, on groups that exist after it."""

    messages: tuple[MessageCounts, ...]
    lost: bool
    """True if the work of a message, or of a functional collective, was dropped without a wait for
    it."""
    unclear: bool
    """True if a fixture's thread may have begun some of the messages, which belong to no test."""
    dropped: tuple[Dropped, ...] = ()
    shapes: tuple[MessageShape, ...] = ()
    order: tuple[int, ...] = ()
    """The shape of each message, by its place in ``shapes``, in the order in which they began."""


@dataclass(frozen=True)
class GroupCount:
    """How many collectives a rank issued on one process group during a test."""

    name: str
    members: tuple[int, ...]
    """Global ranks, in group order."""
    collectives: int
    what: int = 0
    """Digest of the collectives called from Python: operation, size, root and so on."""
    where: int = 0
    """Digest of the calling lines, and of sizes that may legally differ."""
    failed: bool = False
    """A wait on the group ended in an error, for example by a timeout."""
    nth: int = 1
    """The number of the group among those of the same members, in the order in which they were
    made, from 1. Those that the rank has destroyed do not count."""

    @property
    def words(self) -> str:
        """The group in words."""
        return group_words(self.name, self.members, self.nth)


NEW_GROUP = "new_group"
"""torch's function that makes a group."""


@dataclass(frozen=True)
class NewGroup:
    """A process group that a test has made, on a rank that is a member."""

    number: int
    """The number of the group among those that the test has made on that rank, with those of which
    it is no member, from 1."""
    members: tuple[int, ...]


@dataclass(frozen=True)
class ForkedWait:
    """A wait on one of a rank's process groups in a process that the rank has forked."""

    name: str
    """``DataLoader worker 0``, ``process Process-1``."""
    operation: str
    site: CodeLine | None
    """The line of user code that called the operation; None if it is not known."""


@dataclass(frozen=True)
class Raised:
    """An exception."""

    kind: str
    """``ValueError``; with its module, if that is not ``builtins``."""
    message: str
    """The first line of the exception's text, cut; empty if it has none."""
    place: CodeLine
    """The line of user code that raised it."""

    @property
    def words(self) -> str:
        """``ValueError: text``."""
        return f"{self.kind}: {self.message}" if self.message else self.kind


@dataclass(frozen=True)
class Handled(Raised):
    """An exception for which a rank runs an ``except``, ``finally`` or ``__exit__``."""

    first: Raised | None = None
    """The first exception of the chain (``raise ... from``, or raised in a handler); None if the
    chain has no other one."""

    def __str__(self) -> str:
        return f"{self.words}, raised after {self.first.words}" if self.first else self.words


@dataclass(frozen=True)
class RankStatus:
    """A rank's status, in answer to a :class:`Probe`."""

    test: int
    number: int
    pulse: str
    """Changes whenever the rank's main thread moves."""
    blocked: bool
    """The main thread sleeps inside a wait for ``waits``."""
    alone: bool
    """No other thread of the rank could issue an operation in the main thread's place."""
    waits: tuple[PendingOperation, ...]
    """What the main thread waits for, all of which must end before it goes on."""
    begun: tuple[PendingOperation, ...]
    """All collectives that have begun and are not complete."""
    done: tuple[PendingOperation, ...]
    """The last collectives of each group that are over on this rank, including failed ones."""
    counts: tuple[GroupCount, ...]
    begun_sends: tuple[BegunMessages, ...]
    begun_receives: tuple[BegunMessages, ...]
    exchanges: int
    """Operations of the ``ddp`` fixture that the rank has begun in this test."""
    phase: tuple[str, ...]
    """The names of pytest's phase and of those inside of it, outermost first."""
    place: CodeLine | None
    """The line of user code; None if there is none."""
    engaged: str = ""
    """The operation of torch.distributed that the main thread is in without being ``blocked``, as
    nothing can be proved of it: ``recv from any rank (tag 0)``, ``monitored_barrier``,
    ``new_group #1 (ranks 0, 1)``. Or the start of the test, if other ranks are not ready yet; or
    ``beside``, if the main thread waits for another thread."""
    engaged_name: str = ""
    """The public name of that operation: ``recv``, ``new_group``; empty if it has none."""
    beside_name: str = ""
    """The public name of the first operation in ``beside``; empty if it has none."""
    beside: str = ""
    """Operations of other threads: ``barrier #1 of the default group in thread asyncio_0``; or why
    an extension holds the main thread on purpose, in its words."""
    handled: Handled | None = None
    """The exception that the main thread handles, or one for which it waits."""
    backwards: int = 0
    """How many backward passes the rank's main thread has begun in this test."""
    in_backward: bool = False
    """Whether the main thread is in a backward pass."""
    dropped: tuple[Dropped, ...] = ()
    forked: tuple[ForkedWait, ...] = ()
    new_groups: tuple[NewGroup, ...] = ()
    missing_store: str = ""
    """``host:port`` of a store that the rank has not reached, where torchrun's variables make all
    ranks clients."""


@dataclass(frozen=True)
class CallRecord:
    """One collective of the test that was called from Python, or that C++ issued by itself."""

    group: str
    number: int
    operation: str
    numel: int | None
    dtype: str | None
    reduce_op: str | None
    root: int | None
    """Source or destination, as rank in the group."""
    site: CodeLine | None
    """The line of user code; None for a collective that C++ issued."""
    sends: tuple[str, ...] = ()
    """What each member gets, as ``4 x float32``, in group order; a single entry if all get the
    same. Empty for operations that are not made of pieces."""
    receives: tuple[str, ...] = ()
    """What is expected of each member, in the form of ``sends``."""


@dataclass(frozen=True)
class Calls:
    """The last collectives of a test on one rank: the answer to :class:`RequestCalls`."""

    test: int
    calls: tuple[CallRecord, ...]
    traffic: Traffic | None = None
    """Sends and receives of the test so far; None without any."""
