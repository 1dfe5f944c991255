"""Every record that crosses a process boundary, and nothing else.

Three parties talk: the *controller* (the user's pytest process or one xdist
worker), the *host* that collects once and forks, and the *ranks*. A message is a
frozen dataclass with JSON-able fields; :mod:`pytest_ddp.channel` frames it. Without
slots, which would make each class twice: this module is imported while a user waits.
It imports nothing of ours but its other half, :mod:`pytest_ddp.survey`, so that host and
ranks stay free of controller code.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, TypeAlias

from pytest_ddp.survey import Calls, GroupCount, Probe, Standing, TellCalls

Json: TypeAlias = dict[str, Any]


class Backend(enum.StrEnum):
    """A ``torch.distributed`` backend that the plugin can build a group on."""

    GLOO = "gloo"
    NCCL = "nccl"


class Phase(enum.StrEnum):
    """The phase of a test, in pytest's words (``TestReport.when``)."""

    SETUP = "setup"
    CALL = "call"
    TEARDOWN = "teardown"


class Operation(enum.StrEnum):
    """An operation of the ``ddp`` fixture that goes through the controller."""

    BARRIER = "barrier"
    GATHER = "gather"
    BROADCAST = "broadcast"


# ---------------------------------------------------------------- controller -> host


@dataclass(frozen=True)
class Session:
    """How to set up pytest as the controller did; the first message to a host or rank."""

    spawns: bool
    """True for a host that spawns interpreters instead of forking itself."""
    args: tuple[str, ...]
    """The arguments that pytest was called with."""
    plugins: tuple[str, ...]
    """Plugin modules given to ``pytest.main(plugins=...)`` by name."""
    worker: str
    """Id of the xdist worker that the controller is, or "ddp"."""
    basetemp: str
    """Below it each rank makes its own base for ``tmp_path_factory``."""
    verbose_output: bool
    """True under ``-s``: ranks write straight to the terminal."""
    traces: bool = False
    """True with ``--ddp-trace``: ranks write down what they do."""


@dataclass(frozen=True)
class Collect:
    """Collect these files (absolute paths)."""

    files: tuple[str, ...]


@dataclass(frozen=True)
class StartRank:
    """Fork (or spawn) one rank; the rank's end of its channel travels with this message."""

    serial: int
    """Number of the process among all ranks that the controller ever started."""
    rank: int
    """The rank that the process will be in every test it takes part in."""
    directory: str
    """The controller's private directory; the rank's fault file lies in it."""
    traces: bool = False
    """As in :class:`Session`."""


@dataclass(frozen=True)
class KillRank:
    """Kill the process group of a rank and whatever it left behind."""

    serial: int


# ---------------------------------------------------------------- host -> controller


@dataclass(frozen=True)
class HostReady:
    """The host has collected and can start ranks."""

    fork_problem: str | None
    """Why ranks must not be forked from this host (threads, CUDA), in words; None if safe."""


@dataclass(frozen=True)
class RankStarted:
    """A rank's process exists."""

    serial: int
    pid: int


@dataclass(frozen=True)
class RankExited:
    """A rank's process is gone and reaped, and its process group is killed."""

    serial: int
    returncode: int
    """As in ``subprocess``: the exit code, or minus the signal's number."""


# ---------------------------------------------------------------- controller -> rank


@dataclass(frozen=True)
class GroupPlan:
    """The default process group that a test needs."""

    backend: Backend
    world_size: int
    devices: tuple[int, ...] | None
    """Index of each rank's GPU; None on the CPU."""
    store: str
    """Path of the ``FileStore`` file; a new path means a new group."""


@dataclass(frozen=True)
class RunTest:
    """Run one item under pytest's own protocol."""

    test: int
    """Number of the run; every answer carries it."""
    nodeid: str
    next_nodeid: str | None
    """The next item that this rank will run, so that pytest knows which fixtures to keep."""
    next_is_known: bool
    """False under xdist, where the future is unknown: then wide fixtures stay up."""
    rank: int
    world_size: int
    backend: Backend
    device_index: int | None
    """Index into ``CUDA_VISIBLE_DEVICES`` of this rank's GPU; None for the CPU."""
    group: GroupPlan | None
    """None when the test has ``init=False``."""
    env: dict[str, str]
    """The torchrun environment plus the marker's ``env``."""
    seed: int
    """Seed of this rank's random number generators (python, NumPy, torch)."""
    shared_seed: int
    """Seed of what all ranks must draw alike, as Hypothesis's examples."""
    tmp_path: str | None
    """The directory that all ranks of the test share, if the test asks for one."""
    serve_store: bool
    """True for the rank that serves the env:// rendezvous; the listening socket travels along."""


@dataclass(frozen=True)
class ExchangeReply:
    """The answer to an :class:`Exchange`."""

    number: int
    payloads: tuple[str, ...]
    """Base64 of pickled objects by rank, never unpickled by the controller."""
    error: str | None
    """Why the exchange cannot complete, in a sentence; None if it did."""


@dataclass(frozen=True)
class Go:
    """Every rank has built the new process group: begin."""

    test: int


@dataclass(frozen=True)
class Finish:
    """Tear down what is still up, end the session and exit."""


# ---------------------------------------------------------------- rank -> controller


@dataclass(frozen=True)
class RankReady:
    """The rank waits for its first test. Descriptors of its capture files travel along."""

    serial: int
    pid: int
    captured: tuple[str, ...]
    """Names of the attached capture files, in order: "stdout", "stderr"."""


@dataclass(frozen=True)
class Began:
    """The group stands and the item was found: from here on it is the test's own doing."""

    test: int
    waits: bool
    """The group is new: the rank waits for :class:`Go`, because a rank that died while
    another still builds the group would look like a failed rendezvous."""


@dataclass(frozen=True)
class NotBegun:
    """The test could not be started on this rank."""

    test: int
    problem: str
    """A sentence and, where there is one, a traceback."""
    infrastructure: bool
    """True if the group could not be built, which is worth one retry."""


@dataclass(frozen=True)
class PhaseReported:
    """One of pytest's reports, as ``pytest_report_to_serializable`` gives it."""

    test: int
    report: Json


@dataclass(frozen=True)
class Warned:
    """A warning that pytest recorded in the rank."""

    category: str
    """Qualified name of the warning's class, ``module:qualname``."""
    message: str
    filename: str
    lineno: int
    when: str
    nodeid: str


@dataclass(frozen=True)
class Exchange:
    """A rank arrived at the ``number``-th side-channel operation of the test."""

    test: int
    number: int
    operation: Operation
    source: int | None
    """The source rank of a broadcast."""
    payload: str
    """Base64 of the pickled object; empty for a barrier or a receiver."""


@dataclass(frozen=True)
class Done:
    """The rank has run the item and cleaned up after it."""

    test: int
    counts: tuple[GroupCount, ...]
    group_doubt: str | None
    """Why the default group must be rebuilt; None if it can be kept."""
    tied: bool
    """A fixture wider than the test used the group in its set-up, and is still up."""
    rank_doubt: tuple[str, ...]
    """What the test leaked that retires the rank (threads, processes, groups)."""
    changes: tuple[str, ...]
    """What the test changed and the rank restored (environment, cwd, dtype, ...)."""
    setup_show: str
    """What ``--setup-show`` would print, empty without it."""
    exit_reason: str | None
    """Reason of a ``pytest.exit`` in the rank."""
    exit_code: int | None
    """Return code that the ``pytest.exit`` asked for."""


@dataclass(frozen=True)
class Finished:
    """The rank's session has ended; it exits next."""

    problem: str | None
    """Traceback of a fixture teardown that failed now, when no report can carry it."""


ToHost: TypeAlias = Session | Collect | StartRank | KillRank
FromHost: TypeAlias = HostReady | RankStarted | RankExited
ToRank: TypeAlias = Session | Collect | RunTest | Go | ExchangeReply | Probe | TellCalls | Finish
FromRank: TypeAlias = (
    RankReady
    | Began
    | NotBegun
    | PhaseReported
    | Warned
    | Exchange
    | Standing
    | Calls
    | Done
    | Finished
)
Message: TypeAlias = ToHost | FromHost | ToRank | FromRank
