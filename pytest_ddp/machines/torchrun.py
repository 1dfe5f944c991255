"""Machines of torchrun, or of any launcher that sets its variables with one process per node.

Each node runs the same command. Node 0 is pytest; the others become agents of it. Where the hub
listens they learn from torchrun's own store. A launcher without such a store, as
Kubernetes' PyTorchJob is, leaves ``MASTER_PORT`` free: there the hub listens itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from pytest_ddp.machines import seal
from pytest_ddp.system.own import json, socket

SECRET = "PYTEST_DDP_SECRET"
"""Holds the session's secret, if the user has set one for all nodes."""
_COMMAND = (
    "torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT "
    "-m pytest --ddp-machines=torchrun ..., on each node"
)
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_WAIT = timedelta(seconds=120)


@dataclass(frozen=True)
class Place:
    """This node among all."""

    node: int
    nodes: int
    address: str
    """Of node 0, by name or number."""
    port: int
    has_store: bool
    """Whether the launcher serves a store at this port."""
    key: str
    """Under which the hub's place is told there."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Place:
        """What the launcher has told.

        Raises:
            ValueError: it is none, or has started more than one process on a node.
        """
        if missing := [name for name in _NEEDED if name not in environment]:
            raise ValueError(
                f"{', '.join(missing)} not set: pytest was not started by torchrun, or a launcher "
                f"that sets its variables. Start it by {_COMMAND}"
            )
        if environment.get("LOCAL_WORLD_SIZE", "1") != "1":
            raise ValueError(
                f"there are {environment['LOCAL_WORLD_SIZE']} processes on this node: ranks are "
                f"started by the plugin, and the launcher starts one process a node. Start it by "
                f"{_COMMAND}"
            )
        try:
            node, nodes, port = (
                int(environment[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")
            )
        except ValueError as error:
            raise ValueError(f"RANK, WORLD_SIZE and MASTER_PORT are numbers: {error}") from None
        run = environment.get("TORCHELASTIC_RUN_ID", "")
        attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        has_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        if not has_store and not environment.get(SECRET):
            raise ValueError(
                f"this launcher has no store by which nodes could agree on a secret. Set {SECRET} "
                "to the same random text on all nodes, such as that of python -c 'import secrets; "
                "print(secrets.token_hex(32))'"
            )
        key = f"pytest-ddp/{run}/{attempt}"
        return cls(node, nodes, environment["MASTER_ADDR"], port, has_store, key)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def own_address(self) -> str:
        """That of node 0, by which the others reach it.

        Raises:
            OSError: it is unknown.
        """
        found = socket.getaddrinfo(self.address, None, socket.AF_INET, socket.SOCK_STREAM)
        return str(found[0][4][0])


def tell_where(place: Place, address: str, port: int, secret: str, *, is_users: bool) -> None:
    """Have the other nodes find the hub.

    Args:
        place: of node 0.
        address: where it listens.
        port: the same.
        secret: the session's.
        is_users: whether the user has told it to all nodes, so that the store need not.
    """
    if place.has_store:
        known = {"address": address, "port": port, "secret": "" if is_users else secret}
        _store(place).set(place.key, json.dumps(known))


def find(place: Place, users_secret: str) -> tuple[str, int, bytes]:
    """Where the hub listens, and the session's secret.

    Raises:
        RuntimeError: node 0 has not told within two minutes, or its store is gone.
    """
    if not place.has_store:
        return place.own_address(), place.port, users_secret.encode()
    told = json.loads(_store(place).get(place.key))
    secret: str = users_secret or told["secret"]
    return told["address"], told["port"], secret.encode()


def secret_of(users_secret: str) -> str:
    """The user's, or a new one."""
    return users_secret or seal.new_secret()


def _store(place: Place) -> Any:
    from torch import distributed  # noqa: PLC0415 - takes seconds; in hub and agents alone

    kind: Any = distributed.TCPStore  # type: ignore[attr-defined]
    return kind(place.address, place.port, is_master=False, timeout=_WAIT)
