"""Records between controller and host: the session, and how ranks come and go.

A part of :mod:`pytest_ddp.wire.protocol`, which says how they travel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class World:
    """What a rank's process serves in its life; the ranks of one world make a pool.

    Libraries keep their world size in singletons and read it at import: a process that
    changed its place would make right code of theirs hang.
    """

    backend: str
    """As torch takes it: ``gloo``, ``cpu:gloo,cuda:nccl``."""
    world_size: int
    devices: tuple[int, ...] | None
    """The GPU of each rank, as index into the visible ones of its machine; None where ranks get
    none."""
    init: bool
    """Whether its ranks hold a default process group of the plugin's."""
    keeps_group: bool = False
    """Whether one that a test has made stays for the tests after it, as under torchrun."""
    device: str = "cpu"
    """Kind of device that ranks work on: that of ``devices``, or ``cpu`` or ``meta``."""
    nodes: tuple[int, ...] = ()
    """The machine of each rank, by its number; empty in a session on one machine."""

    @property
    def gpus(self) -> frozenset[tuple[int, int]]:
        """The GPUs of its ranks, each with its machine."""
        devices = self.devices or ()
        return frozenset(zip(self.nodes or (0,) * len(devices), devices, strict=False))

    def local_rank(self, rank: int) -> int:
        """The number of a rank among those of its machine."""
        return self.nodes[:rank].count(self.nodes[rank]) if self.nodes else rank


@dataclass(frozen=True)
class Measured:
    """That coverage.py measures the pytest process, and with what: ranks do as it does."""

    config: str
    """Its configuration, as ``CoverageConfig.serialize`` gives it."""
    data_file: str
    """Ranks write to files of this name and a suffix of their own."""
    by_plugin: bool
    """pytest-cov measures, which obeys marks."""
    contexts: bool
    """With ``--cov-context=test``."""
    process_start: str
    """``COVERAGE_PROCESS_START``, which is kept from the host; empty if there is none."""


# ---------------------------------------------------------------- controller -> host


@dataclass(frozen=True)
class Session:
    """How to set up pytest as the controller did; the first message to a host or rank."""

    spawns: bool
    """True for a host that spawns interpreters instead of forking itself."""
    args: tuple[str, ...]
    """The arguments that pytest was called with."""
    argv: tuple[str, ...]
    """``sys.argv`` of the pytest process, which tests find in ranks too."""
    program: str | None
    """``__main__.__file__`` of the pytest process."""
    junit_family: str | None
    """The ``junit_family`` of the file that ``--junitxml`` writes; None if none is written."""
    plugins: tuple[str, ...]
    """Plugin modules given to ``pytest.main(plugins=...)`` by name."""
    worker_input: Json
    """What plugins find as ``config.workerinput``."""
    options: Json
    """Options that plugins have settled after the command line was parsed."""
    basetemp: str
    """Below it each rank makes its own base for ``tmp_path_factory``."""
    verbose_output: bool
    """True under ``-s``: the host and the only rank of a world write straight to the terminal."""
    seed: int = 0
    """The session's seed; hash seeds of spawned ranks derive from it."""
    imports_in_host: bool = False
    """True with ``--ddp-import=host``: the user's code is imported once, before any fork."""
    traces: bool = False
    """True with ``--ddp-trace``: ranks write down what they do."""
    debug_rank: int | None = None
    """That of ``--ddp-debug-rank``: the only one to stop at breakpoints."""
    measured: Measured | None = None
    """None where nobody measures coverage."""


@dataclass(frozen=True)
class Came:
    """Modules that came into the pytest process together, while it collected."""

    file: str
    """What it collected; empty for what came between two of these."""
    modules: tuple[str, ...]
    """Their names, in the order in which their imports began."""


@dataclass(frozen=True)
class Collected:
    """The controller has collected: ranks can be started once the host is ready."""

    files: tuple[str, ...]
    """Absolute paths of the files that hold ddp tests."""
    conftests: tuple[str, ...]
    """Absolute paths of the conftest files above them."""
    path: tuple[str, ...]
    """``sys.path`` after collection, on which the user's modules were found."""
    places: tuple[str, ...]
    """Names of the environment variables that tell a rank its place."""
    came: tuple[Came, ...]
    """All that collection has imported, but for what the host has anyway."""


PLACE_VARIABLES = (
    *("RANK", "LOCAL_RANK", "ROLE_RANK", "GROUP_RANK", "ROLE_NAME"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
)
"""The torchrun variables that a rank has."""


@dataclass(frozen=True)
class StartRank:
    """Fork (or spawn) one rank; its end of its channel, its files and streams travel along."""

    serial: int
    """Number of the process among all ranks that the controller ever started."""
    rank: int
    """The rank that the process will be in every test it takes part in."""
    world: World
    environment: dict[str, str]
    """The torchrun variables of its birth, there before anything of the user's is imported."""
    folder: str
    """The session's, for what the rank cannot remove if it is killed; empty if there is none."""
    serve_store: bool = False
    """True for one that serves the env:// rendezvous from its birth on; the listening socket
    travels along."""
    traces: bool = False
    """As in :class:`Session`, as is the next."""
    measured: Measured | None = None


@dataclass(frozen=True)
class KillRank:
    """Kill the process group of a rank and whatever it left behind."""

    serial: int


# ---------------------------------------------------------------- host -> controller


@dataclass(frozen=True)
class HostReady:
    """The host has imported what ranks share, and can start them."""

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
    why: str = ""
    """What is known of it beside that, as a predicate, where its machine was lost for example."""


@dataclass(frozen=True)
class Clock:
    """How the clocks of another machine stand to those of node 0, as far as it was measured."""

    ahead: int
    """Nanoseconds by which its monotonic clock is ahead."""
    wall_ahead: int
    """The same of its wall clock."""
    uncertainty: int
    """Nanoseconds by which both may be off."""

    def here(self, moment: float) -> float:
        """A moment on its wall clock, on node 0's; in seconds."""
        return moment - self.wall_ahead / 1e9
