"""What torch says of itself and of GPUs, as JSON on standard output.

Run as a program. To ask a GPU for its name initialises CUDA, which a process that forks ranks must
never have done (a forked child cannot use it), and a driver can kill who asks: so it is asked in a
process that ends with the answer, and none of ours imports torch.
"""

from __future__ import annotations

from typing import Any

from pytest_ddp.system.stdlib import json

_KNOWN = ("gloo", "nccl", "xccl", "ucc", "mpi")


def ask() -> dict[str, Any]:
    """Versions, backends, GPUs and the flight recorder."""
    import torch  # noqa: PLC0415 - its absence is an answer, too
    import torch.distributed as dist  # noqa: PLC0415

    told: dict[str, Any] = {
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
        told["backends"] = {name: bool(dist.is_backend_available(name)) for name in names}
        told["recorder"] = _recorder_problem()
    told["nccl"] = _nccl_version(torch)
    try:
        told["gpus"] = [_gpu(torch, index) for index in range(torch.cuda.device_count())]
        told["peers"] = _peers(torch, len(told["gpus"]))
    except Exception as error:
        told["gpu_problem"] = f"{type(error).__name__}: {error}"
    return told


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
    """Which GPU reaches whose memory."""
    ask_one = torch.cuda.can_device_access_peer
    return [[a != b and bool(ask_one(a, b)) for b in range(count)] for a in range(count)]


if __name__ == "__main__":
    print(f"\n{json.dumps(ask())}")
