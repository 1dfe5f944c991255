"""Records between controller and host: the session, and the start and end of ranks.

A part of :mod:`pytest_ddp.protocol.messages`, which describes how they are sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class World:
    """The world that a process belongs to for life; the ranks of one world make a pool.

    Libraries read their world size at import and keep it in singletons: if a process changed its
    place, correct code of theirs would hang.
    """

    backend: str
    """The backend as torch takes it: ``gloo``, ``cpu:gloo,cuda:nccl``."""
    world_size: int
    devices: tuple[int, ...] | None
    """The GPU of each rank, as index into its machine's visible ones; None where ranks have no
    GPU."""
    init: bool
    """Whether the world's ranks have a default process group of the plugin's."""
    keeps_group: bool = False
    """Whether a default group that a test has made stays for later tests, as under torchrun."""
    device: str = "cpu"
    """Kind of device that ranks work on: that of ``devices``, or ``cpu`` or ``meta``."""
    nodes: tuple[int, ...] = ()
    """The number of each rank's machine; empty in a session on one machine."""

    @property
    def gpus(self) -> frozenset[tuple[int, int]]:
        """The GPUs of the world's ranks, each with the number of its machine."""
        devices = self.devices or ()
        return frozenset(zip(self.nodes or (0,) * len(devices), devices, strict=False))

    @property
    def shares_gpus(self) -> bool:
        """Whether two of the world's ranks are on one GPU."""
        return len(self.gpus) < len(self.devices or ())

    def local_rank(self, rank: int) -> int:
        """The number of a rank among those of its machine."""
        return self.nodes[:rank].count(self.nodes[rank]) if self.nodes else rank


@dataclass(frozen=True)
class CoverageSettings:
    """Settings of the coverage.py that measures the pytest process; ranks use the same."""

    config: str
    """Coverage's configuration, from ``CoverageConfig.serialize``."""
    data_file: str
    """Ranks write to files with this name and a suffix of their own."""
    by_plugin: bool
    """True if pytest-cov measures, whose marks are then obeyed."""
    contexts: bool
    """True with ``--cov-context=test``."""
    process_start: str
    """``COVERAGE_PROCESS_START``, which the host does not get; empty if it is not set."""


# ---------------------------------------------------------------- controller -> host


@dataclass(frozen=True)
class Session:
    """How to configure pytest as the controller did; the first message to a host or rank."""

    spawns: bool
    """True for a host that starts interpreters instead of forking itself."""
    args: tuple[str, ...]
    """The arguments that pytest was called with."""
    argv: tuple[str, ...]
    """``sys.argv`` of the pytest process, which ranks have as well."""
    program: str | None
    """``__main__.__file__`` of the pytest process."""
    junit_family: str | None
    """The ``junit_family`` of ``--junitxml``'s file; None if no file is written."""
    plugins: tuple[str, ...]
    """Names of plugin modules given to ``pytest.main(plugins=...)``."""
    worker_input: Json
    """Value of ``config.workerinput`` for plugins."""
    options: Json
    """Options that plugins have set after the command line was parsed."""
    basetemp: str
    """The folder below which each rank makes its own base for ``tmp_path_factory``."""
    verbose_output: bool
    """True under ``-s``: the host, and a world's only rank, write directly to the terminal."""
    seed: int = 0
    """The session's seed; hash seeds of spawned ranks derive from it."""
    imports_in_host: bool = False
    """True with ``--ddp-import=host``: the user's code is imported once, before any fork."""
    traces: bool = False
    """True with ``--ddp-trace``: ranks write a trace."""
    debug_rank: int | None = None
    """The value of ``--ddp-debug-rank``, the only rank to stop at breakpoints."""
    measured: CoverageSettings | None = None
    """None if coverage is not measured."""


@dataclass(frozen=True)
class ImportedModules:
    """Modules that the pytest process imported together, during collection."""

    file: str
    """The file that was collected; empty for imports between two files."""
    modules: tuple[str, ...]
    """Names of modules, in the order in which their imports began."""


@dataclass(frozen=True)
class Collected:
    """The controller has collected: ranks can be started once the host is ready."""

    files: tuple[str, ...]
    """Absolute paths of the files with ddp tests."""
    conftests: tuple[str, ...]
    """Absolute paths of the conftest files above them."""
    path: tuple[str, ...]
    """``sys.path`` after collection, on which the user's modules were found."""
    places: tuple[str, ...]
    """Names of the environment variables from which a process reads its rank."""
    came: tuple[ImportedModules, ...]
    """All imports of the collection, except for modules that the host has anyway."""


PLACE_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "ROLE_RANK",
    "GROUP_RANK",
    "ROLE_NAME",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
)
"""The torchrun variables that a rank has."""


@dataclass(frozen=True)
class StartRank:
    """Fork (or spawn) one rank; its end of its channel, its files and streams are attached."""

    serial: int
    """Number of the process among all ranks that the controller has started."""
    rank: int
    """The rank of the process in every test that it takes part in."""
    world: World
    environment: dict[str, str]
    """The rank's torchrun variables, which are set before any user code is imported."""
    folder: str
    """The session's folder, for files that a killed rank cannot remove; empty without one."""
    serve_store: bool = False
    """True if the rank serves the env:// rendezvous from its start on; the listening socket is
    attached."""
    traces: bool = False
    """``traces`` of :class:`Session`; ``measured`` is taken from there, too."""
    measured: CoverageSettings | None = None


@dataclass(frozen=True)
class KillRank:
    """Kill the process group of a rank, and processes that it left behind."""

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
    """A rank's process has been reaped, and its process group killed."""

    serial: int
    returncode: int
    """The exit code, or minus the signal's number."""
    why: str = ""
    """What else is known of the rank's end, as a predicate; for example that its machine was
    lost."""


@dataclass(frozen=True)
class Clock:
    """How the clocks of another machine stand to those of node 0, as far as it was measured."""

    ahead: int
    """Nanoseconds by which the machine's monotonic clock is ahead."""
    wall_ahead: int
    """Nanoseconds by which the machine's wall clock is ahead."""
    uncertainty: int
    """Nanoseconds by which both may be off."""

    def here(self, moment: float) -> float:
        """Convert a moment from the machine's wall clock to node 0's; in seconds."""
        return moment - self.wall_ahead / 1e9
