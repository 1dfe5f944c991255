"""Messages about served processes: forks of a service in place of interpreters of ``spawn``."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ddp.protocol.host_messages import Json
from pytest_ddp.protocol.messages import ExtensionMessage
from pytest_ddp.protocol.rank_status import RankStatus

DESCRIPTORS = 11
"""Descriptors attached to :class:`Serve`: the process's channel, its three standard streams, the
pipes of its data and of its sentinel, the resource tracker's, and the four of ``RankFiles``."""
AT_ONCE = 8
"""The most descriptors that are attached to one :class:`Inherit`."""


# ---------------------------------------------------------------- pytest process -> service


@dataclass(frozen=True)
class Serve(ExtensionMessage):
    """Make a process; the answer is :class:`Served`."""

    environment: dict[str, str]
    """All variables, as they are when the process is started."""
    umask: int

    @property
    def descriptor_count(self) -> int:
        return DESCRIPTORS


@dataclass(frozen=True)
class BeginWatch(ExtensionMessage):
    """Watch processes, also those of other services. Orders and reports use the attached socket."""

    timeout: float
    """Seconds; a wait whose own timeout is shorter is no deadlock."""

    @property
    def descriptor_count(self) -> int:
        return 1


@dataclass(frozen=True)
class Watch(ExtensionMessage):
    """Watch one more process. Attached are its channel, its pidfd and the file of its stacks."""

    pid: int

    @property
    def descriptor_count(self) -> int:
        return 3


# ---------------------------------------------------------------- service -> pytest process


@dataclass(frozen=True)
class ServiceReady(ExtensionMessage):
    """The service has finished its imports, and waits for orders."""

    problem: str | None
    """Why the service must not be forked, in words; None if it may be."""


@dataclass(frozen=True)
class Served(ExtensionMessage):
    """The process exists, and the pytest process is its parent."""

    pid: int


@dataclass(frozen=True)
class RankKnown(ExtensionMessage):
    """A watched process has another place in its default process group."""

    pid: int
    rank: int
    """The rank of the process; -1 if it has no default group now."""


@dataclass(frozen=True)
class Proved(ExtensionMessage):
    """Watched processes can never end, and are about to be killed."""

    hang: Json
    """The fields of a ``Hang``."""
    pids: tuple[int, ...]
    answers: tuple[RankStatus | None, ...]
    """The last answers of these processes, in the order of ``pids``."""


# ---------------------------------------------------------------- pytest process -> its process


@dataclass(frozen=True)
class Inherit(ExtensionMessage):
    """Descriptors that the unpickled objects refer to, in order; they are attached."""

    numbers: tuple[int, ...]
    """The numbers of the descriptors in the pytest process."""
    last: bool

    @property
    def descriptor_count(self) -> int:
        return len(self.numbers)


# ---------------------------------------------------------------- its process -> its watch


@dataclass(frozen=True)
class Joined(ExtensionMessage):
    """The process has made a process group: from now on it answers probes."""


@dataclass(frozen=True)
class ProcessPlace(ExtensionMessage):
    """The process's place in the default process group; sent before each answer to a probe."""

    rank: int
    """The rank of the process; -1 if it has no default group now."""
    world_size: int
    released: bool = False
    """The function of the process has returned, and it only waits until those of the others
    have."""


RETURNED = "returned"
"""The phase of a process after its target has returned or raised; not after ``os._exit``."""


# ---------------------------------------------------------------- descriptors in pickles

_received: list[int] = []
"""The descriptors that were sent to this process, in the order of their pickling."""


@dataclass(frozen=True)
class Inherited:
    """Represents a descriptor in a pickle, by its index among those that were sent.

    multiprocessing gets it from the object that starts a process (``DupFd``).
    """

    place: int

    def detach(self) -> int:
        """The descriptor, in the process that it was sent to."""
        return _received[self.place]


def take_descriptors(descriptors: list[int]) -> None:
    """Add descriptors that were sent to this process, in the order of their pickling."""
    _received.extend(descriptors)
