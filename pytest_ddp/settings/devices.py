"""Chooses the backend and the device type of a test, and the GPU of each rank. Pure.

A backend is written as in torch: one name, or one for each device type (``cpu:gloo,cuda:nccl``).
Only ranks know whether it is available, since they import torch and the packages that register
backends.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ddp.settings.mark import Mark
from pytest_ddp.settings.options import Options
from pytest_ddp.settings.rules import ACCELERATORS, AUTO, pairs

_ACCELERATED = {"nccl": "cuda", "xccl": "xpu"}
"""Backends that need accelerators, with their device type. On ROCm ``cuda`` is the AMD GPU and
``nccl`` is RCCL."""
_EXCLUSIVE = "xccl"
"""The backend that refuses ranks that share an accelerator. NCCL refuses them by default too, but
takes them with variables that ranks get (``rendezvous.sharing_environment``)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The backend and the devices of a test."""

    backend: str
    device: str
    """``cpu``, ``cuda``, ``xpu`` or ``meta``."""
    ranks_per_gpu: int
    """How many ranks may share a GPU."""

    @property
    def has_gpu(self) -> bool:
        return self.device in ACCELERATORS

    @property
    def is_exclusive(self) -> bool:
        """Whether the chosen backend refuses ranks that share a GPU."""
        return _EXCLUSIVE in _names(self.backend)

    def layout(self, world_size: int) -> tuple[int, ...] | None:
        """The GPU of each rank if all GPUs are free; None without GPUs."""
        if not self.has_gpu:
            return None
        return tuple(rank // self.ranks_per_gpu for rank in range(world_size))


def choose(mark: Mark, options: Options, world_size: int, gpus: int, kind: str) -> Choice:
    """Decide by the mark, then by the options, then by the available GPUs.

    Args:
        mark: the mark of the test.
        options: for arguments that are not in the mark.
        world_size: number of ranks.
        gpus: how many GPUs torch can use here.
        kind: torch's device type of these GPUs.

    Raises:
        ValueError: the arguments contradict each other; the text has the fix.
    """
    requested = mark.backend or options.backend
    sharing = _sharing(mark, options)
    device = (
        mark.device
        or needed_device(mark.backend or AUTO)
        or (kind if mark.ranks_per_gpu is not None else None)
        or options.device
        or needed_device(requested)
        or (kind if sharing > 1 else None)
    )
    backend = requested
    if backend == AUTO:
        backend = _automatic(device, sharing, world_size, gpus, kind)
    device = device or needed_device(backend) or "cpu"
    chosen = Choice(backend, device, sharing if device in ACCELERATORS else 1)
    _check(chosen, mark)
    return chosen


def needed_device(backend: str) -> str | None:
    """The accelerator that a backend's text implies; None if it implies none."""
    devices = dict(pairs(backend))
    named = next((device for device in devices if device in ACCELERATORS), None)
    return named or next(filter(None, map(_ACCELERATED.get, devices.values())), None)


def _names(backend: str) -> list[str]:
    """The names in a backend's text."""
    return [name for _, name in pairs(backend)]


def accelerated_name(backend: str) -> str | None:
    """The name in a backend's text that needs accelerators; None without one."""
    return next((name for name in _names(backend) if name in _ACCELERATED), None)


def _sharing(mark: Mark, options: Options) -> int:
    if mark.ranks_per_gpu is not None:
        return mark.ranks_per_gpu
    # An option must not make an error of a mark that requests XCCL, or no GPU.
    takes_none = _EXCLUSIVE in _names(mark.backend or AUTO) or mark.device in ("cpu", "meta")
    return 1 if takes_none else options.ranks_per_gpu


def _automatic(device: str | None, sharing: int, world_size: int, gpus: int, kind: str) -> str:
    if device == "xpu":
        return "xccl"
    if device == "cuda":
        return "nccl" if sharing == 1 else "gloo"
    # Not tried on XPUs: there a bare mark gets gloo.
    fits = device is None and kind == "cuda" and world_size <= gpus
    return "nccl" if fits else "gloo"


def _check(chosen: Choice, mark: Mark) -> None:
    name = accelerated_name(chosen.backend)
    if name is not None and chosen.device != (needs := _ACCELERATED[name]):
        raise ValueError(
            f"device={chosen.device!r} with backend={chosen.backend!r}: {name} needs {needs} "
            f"devices. Write backend='gloo', or device={needs!r}"
        )
    if not chosen.has_gpu and mark.ranks_per_gpu is not None:
        raise ValueError(
            f"ranks_per_gpu={mark.ranks_per_gpu} with device={chosen.device!r}: only ranks on GPUs "
            f"share one. Remove ranks_per_gpu, or write device='cuda'"
        )
    if chosen.ranks_per_gpu > 1 and chosen.is_exclusive:
        raise ValueError(
            f"ranks_per_gpu={chosen.ranks_per_gpu} with backend={chosen.backend!r}: {_EXCLUSIVE} "
            f"refuses two ranks on one GPU. Write backend='gloo', with which they can share it"
        )


def shortage(chosen: Choice, world_size: int, gpus: int, kind: str) -> str | None:
    """The reason for a skip if there are too few GPUs; a test never runs on fewer ranks."""
    layout = chosen.layout(world_size)
    if layout is None:
        return None
    needed, found = layout[-1] + 1, gpus if chosen.device == kind else 0
    if needed <= found:
        return None
    shares = bool(found) and chosen.ranks_per_gpu == 1 and not chosen.is_exclusive
    advice = f"; ranks_per_gpu={world_size} lets ranks share one" if shares else ""
    how = gpu_need_text(chosen, world_size)
    return f"{how}: {needed} needed, {found} found usable by torch{advice}"


def gpu_need_text(chosen: Choice, world_size: int) -> str:
    """The need for GPUs, as the beginning of the reason for a skip."""
    if chosen.ranks_per_gpu > 1:
        ranks = f"{world_size} ranks, at most {chosen.ranks_per_gpu} on one"
        return f"device={chosen.device!r} for {ranks}"
    if name := accelerated_name(chosen.backend):
        return f"{name.upper()} needs {_DEVICE_WORDS[chosen.device]} for each rank"
    return f"device={chosen.device!r} is a GPU for each rank"


_DEVICE_WORDS = {"cuda": "a GPU", "xpu": "an XPU"}
