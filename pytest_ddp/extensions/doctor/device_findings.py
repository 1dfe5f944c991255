"""GPUs of the machine, which of them visibility variables leave, and how many the plugin counts.

The plugin's own inventory decides how many GPUs tests get. It covers NVIDIA only; AMD and Intel
GPUs are detected by their device files and tools.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pytest_ddp.extensions.doctor.findings import CheckResult, note, ok
from pytest_ddp.launch import gpus
from pytest_ddp.system.stdlib import os, shutil, subprocess

_VISIBILITY = (
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    *("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
)
_AMD_NODE = "/dev/kfd"
_AMD_TOOLS = ("amd-smi", "rocm-smi")
_INTEL_TOOLS = ("xpu-smi",)
_INTEL_DRIVERS = frozenset({"i915", "xe"})
_CARDS = Path("/sys/class/drm")
_LIMIT = 60.0
"""Seconds for a driver's command-line tool."""


def findings() -> list[CheckResult]:
    """Findings about the GPUs that the machine has, and how many of them ranks can use."""
    return [*_nvidia(), *_amd(), *_intel(), *_variables(), _usable()]


def _nvidia() -> Iterator[CheckResult]:
    found = gpus.physical_gpus()
    if found:
        cut = sum(len(gpu.instances) for gpu in found)
        names = ", ".join(gpu.uuid for gpu in found)
        yield ok("NVIDIA", f"{len(found)} GPUs{f' with {cut} MIG instances' * bool(cut)}: {names}")
        if cut:
            yield note(
                "NVIDIA",
                "a process sees one MIG instance, so that NCCL tests of two ranks need two GPUs",
                "nvidia-smi -mig 0 (as root) gives a whole GPU back",
            )
    elif command := shutil.which("nvidia-smi"):
        yield note(
            "NVIDIA",
            f"nvidia-smi is there and lists no GPU: {_last_words(command)}",
            "look at the driver; in a container, at docker run --gpus all",
        )


def _last_words(command: str) -> str:
    try:
        run = subprocess.run(
            [command, "-L"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (run.stdout + run.stderr).strip().splitlines()
    return f"it exits with code {run.returncode}" + (f', "{lines[-1].strip()}"' if lines else "")


def _amd() -> Iterator[CheckResult]:
    traces = [_AMD_NODE] if os.path.exists(_AMD_NODE) else []
    traces += [tool for tool in _AMD_TOOLS if shutil.which(tool)]
    if not traces:
        return
    if traces[0] == _AMD_NODE and not os.access(_AMD_NODE, os.R_OK | os.W_OK):
        fix = "add this user to the groups render and video (docker run --group-add)"
        yield note("AMD", f"{_AMD_NODE} is there, and this user may not open it", fix)
    else:
        yield ok("AMD", f"traces of GPUs or of their driver: {', '.join(traces)}")


def _intel() -> Iterator[CheckResult]:
    traces = [tool for tool in _INTEL_TOOLS if shutil.which(tool)]
    for card in sorted(_CARDS.glob("renderD*")):
        with contextlib.suppress(OSError):
            driver = (card / "device" / "driver").resolve().name
            if driver in _INTEL_DRIVERS:
                traces.append(f"/dev/dri/{card.name} ({driver})")
    if traces:
        yield ok("Intel", f"traces of GPUs or of their driver: {', '.join(traces)}")


def _variables() -> Iterator[CheckResult]:
    for name in _VISIBILITY:
        if (value := os.environ.get(name)) is None:
            continue
        text = f"{name}={value}"
        if name == "CUDA_VISIBLE_DEVICES":
            left = gpus.visible_devices()
            text += f" leaves {', '.join(left) if left else 'no GPU'}"
            if gpus.physical_gpus() and not left:
                yield note("visibility", text, "unset it, or name GPUs such as 0,1")
                continue
        yield ok("visibility", text)


def _usable() -> CheckResult:
    count = gpus.count_gpus()
    if count:
        ranks = "one rank" if count == 1 else f"up to {count} ranks"
        larger = "larger ones on gloo and the CPU, or on NCCL with --ddp-ranks-per-gpu"
        return ok("GPUs", f"{count} usable by torch: tests of {ranks} run on NCCL, {larger}")
    if gpus.visible_devices():
        return note(
            "GPUs",
            "none usable: there are some, but this torch is built without CUDA",
            "install a build of torch for this driver: https://pytorch.org/get-started/locally/",
        )
    return ok("GPUs", "none usable: tests run on gloo and the CPU, NCCL tests are skipped")
