"""Prints facts about torch and its GPUs as JSON on standard output.

Run as a program. Reading a GPU's name initialises CUDA, which a process that forks ranks must never
have done (a forked child cannot use CUDA), and a broken driver can kill the process that calls it.
So a subprocess does both and ends; the doctor's own process does not import torch.
"""

from __future__ import annotations

from typing import Any

from pytest_ddp.system.stdlib import json

_KNOWN = ("gloo", "nccl", "xccl", "ucc", "mpi")


def ask() -> dict[str, Any]:
    """Versions, backends, GPUs and the flight recorder."""
    import torch  # noqa: PLC0415 - its absence is a finding, too
    import torch.distributed as dist  # noqa: PLC0415

    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "distributed": dist.is_available(),
        "gpus": [],
        "backends": {},
    }
    if dist.is_available():
        registered = [name for name in dist.Backend.backend_list if name != "undefined"]
        names = dict.fromkeys([*_KNOWN, *registered])
        facts["backends"] = {name: bool(dist.is_backend_available(name)) for name in names}
        facts["recorder"] = _recorder_problem()
    facts["nccl"] = _nccl_version(torch)
    try:
        facts["gpus"] = [_gpu(torch, index) for index in range(torch.cuda.device_count())]
        facts["peers"] = _peers(torch, len(facts["gpus"]))
    except Exception as error:
        facts["gpu_problem"] = f"{type(error).__name__}: {error}"
    return facts


def _recorder_problem() -> str:
    from pytest_ddp.rank.status.status_reporter import recorder_problem  # noqa: PLC0415 - imports torch

    return recorder_problem()


def _nccl_version(torch: Any) -> str:
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except Exception:  # a build without it fails in various ways
        return ""


def _gpu(torch: Any, index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory": total,
        "free": free,
    }


def _peers(torch: Any, count: int) -> list[list[bool]]:
    """Whether GPU a (row) can access the memory of GPU b (column)."""
    can_access = torch.cuda.can_device_access_peer
    return [[a != b and bool(can_access(a, b)) for b in range(count)] for a in range(count)]


if __name__ == "__main__":
    print(f"\n{json.dumps(ask())}")
