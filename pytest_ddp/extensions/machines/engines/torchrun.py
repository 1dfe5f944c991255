"""Machines of torchrun, or of any launcher that sets its variables with one process per node.

Each node runs the same command. Node 0 is pytest; the others become its agents. They read the
coordinator's address from torchrun's own store. A launcher without such a store, such as
Kubernetes' PyTorchJob, leaves ``MASTER_PORT`` free: there the coordinator itself listens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from pytest_ddp.extensions.machines.engines.engine import (
    SECRET,
    Engine,
    EngineError,
    MeetingPoint,
    ShowWait,
)
from pytest_ddp.extensions.machines.engines.options import EngineName as Name
from pytest_ddp.extensions.machines.engines.options import Machines
from pytest_ddp.system.stdlib import json, signal, socket, time

_COMMAND = (
    "torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT "
    "-m pytest --ddp-machines=torchrun ..., on each node"
)
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_WAIT = timedelta(seconds=120)
_SPREAD = 480.0
"""Seconds: the pods of a job start in any order, and one may have its image to fetch."""
_NAME_LIMIT = 120.0
"""Seconds until a name can be resolved: that of a pod can be once the pod runs."""
_BETWEEN_TRIES = 0.5
_NOT_YET = (socket.EAI_AGAIN, socket.EAI_NONAME, socket.EAI_NODATA)
"""Errors of a resolver for a name that may be known a little later."""
_PROCESSES = "PET_NPROC_PER_NODE"
"""torchrun's option as a variable, which Kubernetes' PyTorchJob sets."""


@dataclass
class Torchrun(Engine):
    """A node on which the launcher has started a process."""

    rank: int
    world_size: int
    master: str
    """Address of node 0, by name or number."""
    port: int
    has_store: bool
    """Whether the launcher serves a store at this port."""
    key: str
    """The key of the coordinator's address in it."""

    name: ClassVar[Name] = Name.TORCHRUN
    starts_agents: ClassVar[bool] = False

    @classmethod
    def for_session(
        cls, machines: Machines, python: str | None, environment: Mapping[str, str]
    ) -> Torchrun:
        return cls.from_environment(environment)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Torchrun:
        """Read the launcher's variables.

        Raises:
            EngineError: they are missing, or there is more than one process on a node.
        """
        if missing := [name for name in _NEEDED if name not in environment]:
            raise EngineError(
                f"{', '.join(missing)} not set: pytest was not started by torchrun, or a launcher "
                f"that sets its variables. Start it by {_COMMAND}"
            )
        if environment.get("LOCAL_WORLD_SIZE", "1") != "1":
            raise EngineError(
                f"there are {environment['LOCAL_WORLD_SIZE']} processes on this node: ranks are "
                f"started by the plugin, and the launcher starts one process a node. Start it by "
                f"{_COMMAND}"
            )
        run = environment.get("TORCHELASTIC_RUN_ID", "")
        attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        has_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        processes = environment.get(_PROCESSES, "")
        if not has_store and processes.isdecimal() and int(processes) > 1:
            raise EngineError(
                f"{_PROCESSES}={processes}: WORLD_SIZE counts processes, and this plugin wants one "
                'on each node, which starts the ranks. Write nprocPerNode: "1" into the PyTorchJob'
            )
        try:
            rank, world_size, port = (
                int(environment[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")
            )
        except ValueError as error:
            raise EngineError(f"RANK, WORLD_SIZE and MASTER_PORT are numbers: {error}") from None
        if not has_store and not environment.get(SECRET):
            raise EngineError(
                f"this launcher has no store by which nodes could agree on a secret. Set {SECRET} "
                "to the same random text on all nodes, such as that of python -c 'import secrets; "
                "print(secrets.token_hex(32))'"
            )
        key = f"pytest-ddp/{run}/{attempt}"
        return cls(rank, world_size, environment["MASTER_ADDR"], port, has_store, key)

    @property
    def node(self) -> int:
        return self.rank

    @property
    def nodes(self) -> int:
        return self.world_size

    @property
    def spread(self) -> float:
        # torchrun's own nodes have met already.
        return 0.0 if self.has_store else _SPREAD

    def listens_at(self, show_wait: ShowWait) -> tuple[str, int]:
        try:
            return self._address(show_wait), 0 if self.has_store else self.port
        except OSError as error:
            words = f"MASTER_ADDR={self.master} leads nowhere from node {self.rank}: {error}"
            raise EngineError(words) from error

    def bring(self, meeting: MeetingPoint) -> None:
        """Publish the coordinator's address in the store; without one the nodes have it."""
        if self.has_store:
            secret = "" if meeting.is_users else meeting.secret
            known = {"address": meeting.address, "port": meeting.port, "secret": secret}
            self._store().set(self.key, json.dumps(known))

    def hint(self) -> str:
        if self.world_size > 1 and self._is_ours_alone():
            return (
                f"MASTER_ADDR={self.master} leads to this machine alone: if the others are "
                "elsewhere, set it to this machine's address in the network, before pytest starts"
            )
        return (
            f"Each must reach that address (MASTER_ADDR is {self.master}), and have the same "
            f"{SECRET} if one is set"
        )

    def end(self) -> None:
        """Nothing: the launcher itself waits for the other nodes."""

    def find(self, users_secret: str) -> tuple[str, int, bytes]:
        """Address and port of the coordinator, and the session's secret, on a node that becomes an
        agent.

        Raises:
            OSError: node 0 has no address.
            RuntimeError: the store has no answer within two minutes, or is gone.
        """
        if not self.has_store:
            return self._address(lambda _: None), self.port, users_secret.encode()
        published = json.loads(self._store().get(self.key))
        secret: str = users_secret or published["secret"]
        return published["address"], published["port"], secret.encode()

    def _address(self, show_wait: ShowWait) -> str:
        """The number behind the name of node 0.

        Raises:
            OSError: it has had none for two minutes.
        """
        deadline = time.monotonic() + _NAME_LIMIT
        while True:
            try:
                return self._looked_up()
            except socket.gaierror as error:
                if error.errno not in _NOT_YET or time.monotonic() > deadline:
                    raise
            show_wait(f"MASTER_ADDR={self.master} leads nowhere yet")
            signal.sigtimedwait([], _BETWEEN_TRIES)

    def _looked_up(self) -> str:
        found = socket.getaddrinfo(self.master, None, socket.AF_INET, socket.SOCK_STREAM)
        return str(found[0][4][0])

    def _is_ours_alone(self) -> bool:
        with contextlib.suppress(OSError):
            return self._looked_up().startswith("127.")
        return False

    def _store(self) -> Any:
        from torch import distributed  # noqa: PLC0415 - takes seconds; in coordinator and agents alone

        kind: Any = distributed.TCPStore  # type: ignore[attr-defined]
        return kind(self.master, self.port, is_master=False, timeout=_WAIT)
