"""What the hub asks of whoever has the machines.

An engine either was there before pytest, and has started a process on each node already, or starts
agents itself, once the hub tells it where they have to knock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from pytest_ddp.extensions.machines.engines.options import Engine as Name
from pytest_ddp.extensions.machines.engines.options import Machines

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


Tell: TypeAlias = Callable[[str], object]
"""Says on pytest's terminal what is waited for."""


class EngineError(Exception):
    """There are no such machines; the text has the way out."""


@dataclass(frozen=True)
class Meeting:
    """Where agents find the hub, and what they prove themselves by."""

    address: str
    port: int
    secret: str
    is_users: bool
    """Whether the user has told the secret to all nodes."""


@dataclass
class Engine(ABC):
    """Who has the machines: plain values in the pytest process, and what they do in the hub's."""

    starts_agents: ClassVar[bool] = True
    """Whether agents come because the hub asks for them; pytest waits for these before it
    collects, so that what is wrong with a machine is one error at the start."""

    name: ClassVar[Name]

    @property
    def spread(self) -> float:
        """Seconds that may lie between the starts of its nodes, beside what all of them need."""
        return 0.0

    @classmethod
    @abstractmethod
    def asked(
        cls, machines: Machines, python: str | None, environment: Mapping[str, str]
    ) -> Engine:
        """The engine of a session; see ``find`` in ``choosing.py``."""

    @property
    def node(self) -> int:
        """Which of its nodes this process is on; on others than 0 it is to be an agent."""
        return 0

    @property
    @abstractmethod
    def nodes(self) -> int:
        """How many there are, node 0 included: the machine of pytest, whose agent is the hub's."""

    @abstractmethod
    def listens_at(self, tell: Tell) -> tuple[str, int]:
        """The address of node 0 by which the others reach it, and a port; 0 is any.

        Args:
            tell: says what is waited for; an engine may wait as long as it says something.

        Raises:
            EngineError: it is unknown.
            OSError: the same.
        """

    @abstractmethod
    def bring(self, meeting: Meeting) -> None:
        """Have the agents of all other nodes come.

        Raises:
            EngineError: they will not.
            OSError: the same.
        """

    def ended(self) -> Mapping[int, str]:
        """Nodes whose agents have ended, with what is known of it."""
        return {}

    @abstractmethod
    def hint(self) -> str:
        """What to look at if agents do not come."""

    @abstractmethod
    def end(self) -> None:
        """End agents that have not ended by themselves, and let go of the machines."""
