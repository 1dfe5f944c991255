"""What the coordinator needs of an engine, which provides the machines, and how one is chosen.

An engine either was there before pytest, and has started a process on each node already, or starts
agents itself, once the coordinator listens. The module of an engine is imported if it is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, ClassVar, TypeAlias

from pytest_ddp.extensions.machines.engines.options import EngineName, Machines

SECRET = "PYTEST_DDP_SECRET"
"""The variable that holds the session's secret, where the user has set one for all nodes."""

LAUNCHER_VARIABLES = (
    *("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
    *("PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_RDZV_CONF", "PET_MAX_RESTARTS"),
)
"""torchrun's options as variables, which Kubernetes sets on each node: a torchrun that a test
starts would take them for its own."""

ADDRESS = "MASTER_ADDR"
"""The variable by which a user names the address of node 0, where an engine would find another."""


ShowWait: TypeAlias = Callable[[str], object]
"""Shows on pytest's terminal what the engine waits for."""


class EngineError(Exception):
    """The machines cannot be used; the text has the way out."""


@dataclass(frozen=True)
class MeetingPoint:
    """The address at which agents connect to the coordinator, and the secret for it."""

    address: str
    port: int
    secret: str
    is_users: bool
    """Whether the user has set the secret on all nodes."""


@dataclass
class Engine(ABC):
    """What provides the machines: plain values in the pytest process, active in the
    coordinator's."""

    starts_agents: ClassVar[bool] = True
    """Whether the engine starts the agents; pytest waits for these before it collects, so that a
    problem of a machine is one error at the start."""

    name: ClassVar[EngineName]

    @property
    def spread(self) -> float:
        """Seconds between the first and the last start of its nodes at most."""
        return 0.0

    @classmethod
    @abstractmethod
    def for_session(
        cls, machines: Machines, python: str | None, environment: Mapping[str, str]
    ) -> Engine:
        """The engine of a session; see :func:`find_engine`."""

    @property
    def node(self) -> int:
        """The node that this process runs on; on nodes other than 0 it becomes an agent."""
        return 0

    @property
    @abstractmethod
    def nodes(self) -> int:
        """Number of machines, with node 0, which is that of pytest; the coordinator starts its
        agent."""

    @abstractmethod
    def listens_at(self, show_wait: ShowWait) -> tuple[str, int]:
        """The address of node 0 by which the others reach it, and a port; 0 is any.

        Args:
            show_wait: shows what the engine waits for, which may wait as long as it calls this.

        Raises:
            EngineError: there is no such address.
            OSError: the same.
        """

    @abstractmethod
    def bring(self, meeting: MeetingPoint) -> None:
        """Start the agents of all other nodes, or publish where they connect.

        Raises:
            EngineError: the agents cannot be started.
            OSError: the same.
        """

    def ended(self) -> Mapping[int, str]:
        """Nodes whose agents have ended, with the reason."""
        return {}

    @abstractmethod
    def hint(self) -> str:
        """What to check if agents do not connect."""

    @abstractmethod
    def end(self) -> None:
        """End agents that still run, and release the machines."""


# ------------------------------------------------------------------ choosing

_ROOM = "pytest_ddp.extensions.machines.engines"
_KINDS = {
    EngineName.TORCHRUN: "Torchrun",
    EngineName.RAY: "Ray",
    EngineName.SLURM: "Slurm",
    EngineName.SSH: "Ssh",
}
"""The class of each engine, in the module of the engine's name."""


def find_engine(machines: Machines, python: str | None, environment: Mapping[str, str]) -> Engine:
    """The engine that the options name, in the pytest process.

    Args:
        machines: names the engine.
        python: the interpreter on other machines; None for the path of this one.
        environment: variables of a launcher.

    Raises:
        EngineError: the engine cannot be used here.
    """
    return _kind(machines.engine).for_session(machines, python, environment)


def as_role(engine: Engine) -> dict[str, Any]:
    """Return plain values that make the same engine in the coordinator's process."""
    return {"name": engine.name, "values": asdict(engine)}


def from_role(role: dict[str, Any]) -> Engine:
    """Make the engine of :func:`as_role`."""
    return _kind(EngineName(role["name"]))(**role["values"])


def _kind(name: EngineName) -> type[Engine]:
    kind: type[Engine] = getattr(import_module(f"{_ROOM}.{name}"), _KINDS[name])
    return kind
