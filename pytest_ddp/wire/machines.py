"""Records between the controller and the hub, which has agents on several machines.

A part of :mod:`pytest_ddp.wire.protocol`, which describes how they are sent. For the controller a
hub is a host: it gets and sends a host's messages in addition to these.
"""

from __future__ import annotations

from dataclasses import dataclass

SECRET = "PYTEST_DDP_SECRET"
"""Variable with the session's secret, if the user has set one for all nodes."""

LAUNCHER_VARIABLES = (
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "PET_RDZV_BACKEND",
    "PET_RDZV_ENDPOINT",
    "PET_RDZV_ID",
    "PET_RDZV_CONF",
    "PET_MAX_RESTARTS",
)
"""torchrun's options as variables, which Kubernetes sets on each node: a torchrun that a test
starts would use them."""


@dataclass(frozen=True)
class Clock:
    """Offset of another machine's clocks from those of node 0, as measured."""

    ahead: int
    """Nanoseconds by which its monotonic clock is ahead."""
    wall_ahead: int
    """Nanoseconds by which its wall clock is ahead."""
    uncertainty: int
    """Nanoseconds by which both offsets may be wrong."""

    def here(self, moment: float) -> float:
        """Converts a moment on its wall clock to node 0's; in seconds."""
        return moment - self.wall_ahead / 1e9


# ---------------------------------------------------------------- controller -> hub


@dataclass(frozen=True)
class OpenPort:
    """Make a node listen for the next test; the answer is :class:`PortOpened`."""

    node: int


@dataclass(frozen=True)
class SignalRank:
    """Send a signal to a rank's process."""

    serial: int
    number: int


@dataclass(frozen=True)
class LeaseGpus:
    """Lease GPUs of a node; the answer is :class:`GpusLeased`, once its agent has got them."""

    lease: int
    """Number of this lease among all of the session."""
    node: int
    count: int
    """Number of GPUs, or of shares of them."""
    ranks_per_gpu: int
    limit: float
    """Seconds to wait at most."""
    holder: str
    """Name of the holder, for others who wait for the same GPUs."""


@dataclass(frozen=True)
class ReleaseGpus:
    """Return a lease, or give up waiting for it."""

    lease: int
    node: int


@dataclass(frozen=True)
class EndSession:
    """pytest exits with this code, and the agents do so as well."""

    code: int


# ---------------------------------------------------------------- hub -> controller


@dataclass(frozen=True)
class MachinesAwaited:
    """The engine has only some of the machines, and waits for the others."""

    what: str


@dataclass(frozen=True)
class MachinesFound:
    """The engine has all machines; only :class:`MachinesAwaited` may be sent before."""

    nodes: int


@dataclass(frozen=True)
class NodeJoined:
    """An agent has connected."""

    node: int
    name: str
    """The machine's own name."""
    address: str
    """The address that other machines reach it by."""
    gpus: tuple[str, ...] = ()
    """Names of the GPUs that torch can use there, in torch's order."""
    gpu_kind: str = "cuda"
    """torch's name for this kind of device."""


@dataclass(frozen=True)
class ClockMeasured:
    """The clocks of a node; sent before a message of one of its ranks, if they have changed."""

    node: int
    clock: Clock


@dataclass(frozen=True)
class PortOpened:
    """A node listens on a port, which is used for nothing else."""

    node: int
    number: int


@dataclass(frozen=True)
class GpusLeased:
    """The end of a wait for GPUs."""

    lease: int
    devices: tuple[int, ...]
    """For each share the index of its GPU among the visible ones, in ascending order."""
    refusal: str = ""
    """Why the lease was refused; empty if it was granted."""


@dataclass(frozen=True)
class NodeLost:
    """A machine no longer answers; :class:`RankExited` is sent for its ranks."""

    node: int
    why: str
    """A predicate, for a sentence about the machine."""


@dataclass(frozen=True)
class Unfit:
    """These machines cannot run tests together."""

    problem: str
    """A sentence with the machine's name, and what to do."""
