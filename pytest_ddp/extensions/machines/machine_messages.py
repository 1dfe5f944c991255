"""Messages between the controller and the coordinator, which connects agents on several machines.

To the controller the coordinator is a host: it also takes and sends the messages of a host, which
:mod:`pytest_ddp.protocol.messages` declares.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ddp.protocol.host_messages import Clock
from pytest_ddp.protocol.messages import ExtensionMessage

# ---------------------------------------------------------------- controller -> coordinator


@dataclass(frozen=True)
class OpenPort(ExtensionMessage):
    """Have a node listen for the next test; the answer is :class:`PortOpened`."""

    node: int


@dataclass(frozen=True)
class SignalRank(ExtensionMessage):
    """Send a signal to a rank's process."""

    serial: int
    number: int


@dataclass(frozen=True)
class LeaseGpus(ExtensionMessage):
    """Lease GPUs of a node; the answer is :class:`GpusLeased`, for its agent waits for them."""

    lease: int
    """Number of this lease among all of the session."""
    node: int
    count: int
    """How many GPUs, or shares of GPUs."""
    ranks_per_gpu: int
    limit: float
    """Seconds to wait at most."""
    holder: str
    """The text about this lease that processes show which wait for its GPUs in vain."""


@dataclass(frozen=True)
class ReleaseGpus(ExtensionMessage):
    """Return a lease, or stop waiting for it."""

    lease: int
    node: int


@dataclass(frozen=True)
class EndSession(ExtensionMessage):
    """pytest ends with this exit code, and the agents end with the same."""

    code: int


# ---------------------------------------------------------------- coordinator -> controller


@dataclass(frozen=True)
class MachinesAwaited(ExtensionMessage):
    """The engine still waits for machines."""

    what: str


@dataclass(frozen=True)
class MachinesFound(ExtensionMessage):
    """The engine has all machines; before that a coordinator sends only
    :class:`MachinesAwaited`."""

    nodes: int


@dataclass(frozen=True)
class NodeJoined(ExtensionMessage):
    """An agent has connected."""

    node: int
    name: str
    """The machine's own name."""
    address: str
    """The address at which others reach it."""
    gpus: tuple[str, ...] = ()
    """Names of the GPUs that torch can use on the machine, in torch's order."""
    gpu_kind: str = "cuda"
    """torch's device type of these GPUs."""


@dataclass(frozen=True)
class ClockMeasured(ExtensionMessage):
    """The clocks of a node; sent, if they have changed, before a message of one of its ranks."""

    node: int
    clock: Clock


@dataclass(frozen=True)
class PortOpened(ExtensionMessage):
    """A node listens at this port, which is for one test alone."""

    node: int
    number: int


@dataclass(frozen=True)
class GpusLeased(ExtensionMessage):
    """The answer to :class:`LeaseGpus`."""

    lease: int
    devices: tuple[int, ...]
    """The index of each share's GPU among the visible ones, in ascending order."""
    refusal: str = ""
    """Why there is no lease; empty if there is."""


@dataclass(frozen=True)
class NodeLost(ExtensionMessage):
    """A machine does not answer any more; its ranks are reported as exited."""

    node: int
    why: str
    """The reason, as the predicate of a sentence about the machine."""


@dataclass(frozen=True)
class Unfit(ExtensionMessage):
    """The machines of the session cannot run tests together."""

    problem: str
    """A sentence that names the machine, and what to do."""
