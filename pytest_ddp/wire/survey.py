"""The part of the protocol that speaks of collectives: where ranks stand, what they called."""

from __future__ import annotations

from dataclasses import dataclass

SIDE_CHANNEL = "ddp"
"""Stands for a group in what is said of the fixture's operations, whose members are all ranks."""


def group_words(name: str, members: tuple[int, ...]) -> str:
    """A process group as a reader knows it."""
    if name == "0":
        return "the default group"
    return f"the group of ranks {', '.join(map(str, members))}"


@dataclass(frozen=True)
class Probe:
    """Where do you stand? Answered at once by a side thread, unless the GIL is held."""

    test: int
    number: int


@dataclass(frozen=True)
class TellCalls:
    """Which collectives did the test ask for? Sent where the digests of ranks differ."""

    test: int


@dataclass(frozen=True)
class Wait:
    """A collective, a receive or an operation of the ``ddp`` fixture that a rank has begun and
    that is not complete."""

    group: str
    members: tuple[int, ...]
    """Global ranks, in group order."""
    number: int
    """Number of the collective on its group in this test, from 1; of the receive from
    its peer, for a receive."""
    operation: str
    """As users call it: ``all_reduce``, ``recv``, ``ddp.gather``."""
    recorded_as: str | None
    """The flight recorder's name for it; None where it has no record."""
    numel: int | None
    dtype: str | None
    peer: int | None
    """Global rank of the sender, for a receive."""
    tag: int | None
    site: str
    """``file:line`` of the user's code that asked for it."""
    root: int | None = None
    """Global rank of the source or destination, where Python asked for a collective that has
    one."""
    ends_in: float | None = None
    """Seconds at least until a timeout ends it; None if none was found."""

    def may_end_within(self, seconds: float) -> bool:
        """True if a timeout may end it before so many seconds are over."""
        return self.ends_in is not None and self.ends_in < seconds


@dataclass(frozen=True)
class Sent:
    """Messages that a rank sent in this test to one receiver with one tag."""

    group: str
    receiver: int
    """Global rank."""
    tag: int
    count: int


@dataclass(frozen=True)
class Messages:
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
    """How many of them fixtures wider than the test began in their set-up."""
    site: str
    """``file:line`` of the user's code that began the last one."""


@dataclass(frozen=True)
class Traffic:
    """All sends and receives that a rank began in a test, on the groups that there are after it."""

    messages: tuple[Messages, ...]
    lost: bool
    """The work of one of them was dropped, and nobody had waited for it; or there is a functional
    collective of which this is so."""
    unclear: bool
    """A fixture's thread begins some at moments of its own, which belong to no test."""


@dataclass(frozen=True)
class GroupCount:
    """How many collectives a rank issued on one process group during a test."""

    name: str
    members: tuple[int, ...]
    """Global ranks, in group order."""
    collectives: int
    what: int = 0
    """Digest of the collectives that Python asked for: operation, size, root and so on."""
    where: int = 0
    """Digest of the lines that asked for them, and of sizes that may legally differ."""
    failed: bool = False
    """A wait on the group ended in an error, as by a timeout."""


@dataclass(frozen=True)
class Handled:
    """An exception whose ``except``, ``finally`` or ``__exit__`` a rank is in."""

    kind: str
    """``ValueError``; with its module, if that is not ``builtins``."""
    message: str
    """The first line of its text, cut; empty if it has none."""
    place: str
    """``file:line in function`` of the user's code that raised it."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


@dataclass(frozen=True)
class Standing:
    """Where a rank stands, in answer to a :class:`Probe`."""

    test: int
    number: int
    pulse: str
    """Changes whenever the rank's main thread moves."""
    blocked: bool
    """The main thread sleeps inside a wait for ``waits``."""
    alone: bool
    """No other thread of the rank could issue what its main thread does not."""
    waits: tuple[Wait, ...]
    """What the main thread cannot go on without."""
    begun: tuple[Wait, ...]
    """Everything that is begun and not complete."""
    done: tuple[Wait, ...]
    """The last collectives of each group that are over for this rank, failed ones too."""
    counts: tuple[GroupCount, ...]
    sent: tuple[Sent, ...]
    exchanges: int
    """Operations of the ``ddp`` fixture that the rank has come to in this test."""
    phase: str
    """Phase of the test, with the user's own phase where there is one."""
    place: str
    """``file:line in function`` of the user's code."""
    engaged: str = ""
    """The operation of torch.distributed that the main thread is in without being ``blocked``, as
    nothing can be proved of it: ``send to rank 1 (tag 0)``, ``monitored_barrier``,
    ``new_group #1 (ranks 0, 1)``. Or the start of the test, for which others are not ready; or
    ``beside``, if the main thread waits for another one."""
    beside: str = ""
    """What other threads are in: ``barrier #1 of the default group in thread asyncio_0``."""
    handled: Handled | None = None
    """The exception that its main thread handles."""


@dataclass(frozen=True)
class CallRecord:
    """One collective that Python code of the test asked for, or that C++ issued by itself."""

    group: str
    number: int
    operation: str
    numel: int | None
    dtype: str | None
    reduce_op: str | None
    root: int | None
    """Source or destination, as rank in the group."""
    site: str
    """``file:line`` of the user's code; empty for what C++ issued."""
    sends: tuple[str, ...] = ()
    """What each member gets, as ``4 x float32``, in group order; one for all of them if they get
    the same. Empty for operations that are not made of pieces."""
    receives: tuple[str, ...] = ()
    """What is expected of each member, in the same way."""


@dataclass(frozen=True)
class Calls:
    """The last collectives of a test, in answer to :class:`TellCalls`."""

    test: int
    calls: tuple[CallRecord, ...]
