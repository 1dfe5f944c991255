"""State of torch.distributed beside groups, which one test may leave to the next.

It is looked up only in modules that are loaded: a test that uses none of it pays a few look-ups.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d


def services() -> frozenset[str]:
    """Services that run now and could be ended, in words."""
    return frozenset({"an RPC agent (no rpc.shutdown)"} if _rpc_runs() else ())


def traces() -> frozenset[str]:
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
        propagator.propagate_op_sharding.cache_clear()
        getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", bool)()


def _rpc_runs() -> bool:
    return bool(_value("rpc", "_is_current_rpc_agent_set", bool)())


def _mesh_stack() -> list[Any]:
    resources = _value("device_mesh", "_mesh_resources", None)
    stack: list[Any] = getattr(resources, "mesh_stack", [])
    return stack


def _value(module: str, name: str, default: Any) -> Any:
    return getattr(sys.modules.get(f"torch.distributed.{module}"), name, default)
