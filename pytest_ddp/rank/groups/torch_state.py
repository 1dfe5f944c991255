"""State of torch.distributed beside groups, which one test may leave to the next.

It is looked up only in modules that are loaded: a test that uses none of it pays a few look-ups.
"""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from sys import _getframe
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from pytest_ddp.rank.operations.origins import called_by_user


def services() -> frozenset[str]:
    """Services that run now and could be ended, in words."""
    return frozenset({"an RPC agent (no rpc.shutdown)"} if _rpc_runs() else ())


def irreversible() -> frozenset[str]:
    """What was done in this process and cannot be undone.

    torch refuses to do it twice, or the second time uses leftovers of the first: its registry of
    remote references always goes through the first RPC agent of the process, so that a second
    agent cannot pass references on (torch 2.13).
    """
    return frozenset(
        (
            f"RPC {0 if _rpc_runs() else _value('rpc', '_init_counter', 0)}",
            *dist.Backend.backend_list,
            *_value("rendezvous", "_rendezvous_handlers", ()),
            *_value("_symmetric_memory", "_group_name_to_store", ()),
        )
    )


def unwaited() -> int:
    """Functional collectives whose results have not been waited for."""
    size: int = getattr(_distributed_c10d, "_get_work_registry_size", int)()
    return size


def is_coalescing() -> bool:
    """Whether a block that coalesces collectives was left by an exception."""
    return bool(dist.distributed_c10d._world.pg_coalesce_state)


def entered_meshes() -> tuple[Any, ...]:
    """The device meshes whose ``with`` blocks are open."""
    return tuple(_mesh_stack())


def set_entered_meshes(meshes: tuple[Any, ...]) -> None:
    _mesh_stack()[:] = meshes


def forget_meshes() -> None:
    """Clear torch's caches by device mesh, since the meshes' process groups may be gone.

    torch compares meshes by shape and not by groups: a DTensor of the next test would get the mesh
    of an earlier one, and use groups that are gone, or others with their names.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.distributed.tensor"):
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
    tensor = _value("tensor", "DTensor", None)
    propagator = getattr(getattr(tensor, "_op_dispatcher", None), "sharding_propagator", None)
    if propagator is not None:
        # Below the cache of each thread, whose own `cache_clear` torch 2.8 does not have.
        cached = getattr(getattr(propagator, "propagate_op_sharding", None), "cache", None)
        getattr(cached, "cache_clear", bool)()
        getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", bool)()


def _rpc_runs() -> bool:
    return bool(_value("rpc", "_is_current_rpc_agent_set", bool)())


def _mesh_stack() -> list[Any]:
    resources = _value("device_mesh", "_mesh_resources", None)
    stack: list[Any] = getattr(resources, "mesh_stack", [])
    return stack


def _value(module: str, name: str, default: Any) -> Any:
    return getattr(sys.modules.get(f"torch.distributed.{module}"), name, default)


# ------------------------------------------------------------------
# Stores that user code has made and still holds: listening ports, and files of keys.

_made: dict[int, tuple[weakref.ref[Any], str, str]] = {}
"""Kind and name of each store that may still be held, by a number of its own."""
_numbers = itertools.count()
ports: set[str] = set()
"""The ports at which this process has made a ``TCPStore``, as server or client."""


def watch() -> None:
    """Record stores that user code makes from now on."""
    for kind, name_of in (("TCPStore", _port_of), ("FileStore", _file_of)):
        _wrap(getattr(dist, kind), kind, name_of)


def held() -> dict[int, tuple[str, str]]:
    """Kind and name of the stores that are still referenced; a process group is no reference."""
    for number, (store, *_) in list(_made.items()):
        if store() is None:
            del _made[number]
    return {number: (kind, name) for number, (_, kind, name) in _made.items()}


def _wrap(store_type: Any, kind: str, name_of: Any) -> None:
    original = store_type.__init__

    @functools.wraps(original)
    def init(store: Any, *args: Any, **kwargs: Any) -> None:
        original(store, *args, **kwargs)
        if kind == "TCPStore":
            ports.add(str(store.port))
        if called_by_user(_getframe(1)):
            _made[next(_numbers)] = weakref.ref(store), kind, name_of(store)

    store_type.__init__ = init


def _port_of(store: Any) -> str:
    return f"{store.host}:{store.port}"


def _file_of(store: Any) -> str:
    return str(store.path)
