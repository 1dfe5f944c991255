"""Python, pytest, torch and its backends, as a short-lived subprocess sees them."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from typing import Any

from pytest_ddp.extensions.doctor.findings import CheckResult, note, ok, stop
from pytest_ddp.launch.rendezvous import HOST_ENVIRONMENT
from pytest_ddp.system.stdlib import json, os, subprocess

_LIMIT = 180.0
"""Seconds; torch's first import from a cold network disk takes a minute."""
_REINSTALL = "install torch 2.8 or newer: https://pytorch.org/get-started/locally/"

Facts = dict[str, Any]


def ask_torch() -> tuple[Facts, str]:
    """The output of :mod:`pytest_ddp.extensions.doctor.probe`, or why there is none."""
    try:
        run = subprocess.run(
            [sys.executable, "-m", "pytest_ddp.extensions.doctor.probe"],
            env=os.environ | HOST_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT,
        )
    except subprocess.TimeoutExpired:
        return {}, f"importing torch and listing GPUs took longer than {_LIMIT:.0f} s"
    last = (run.stdout if run.returncode == 0 else run.stderr).strip().splitlines()
    if run.returncode == 0 and last:
        facts: Facts = json.loads(last[-1])
        return facts, ""
    how = f"signal {-run.returncode}" if run.returncode < 0 else f"exit code {run.returncode}"
    return {}, f"the probe of torch failed ({how}): {last[-1] if last else 'no output'}"


def versions() -> dict[str, str]:
    """Versions of Python, the platform and the packages concerned."""
    packages = ("pytest-ddp", "pytest", "pytest-xdist", "torch")
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def findings(facts: Facts, problem: str, gpus: int) -> list[CheckResult]:
    """Findings about torch and its backends.

    Args:
        facts: about torch, from :func:`ask_torch`.
        problem: why there are no facts; empty if there are.
        gpus: the number of GPUs that the plugin counts.
    """
    found = versions()
    python = ok("python", f"{found['python']}, pytest {found['pytest']}, {sys.executable}")
    if problem:
        return [python, stop("torch", problem, _REINSTALL)]
    return [python, _torch(facts), _backends(facts), *_gpus(facts, gpus), _recorder(facts)]


def _torch(facts: Facts) -> CheckResult:
    built = [f"{name} {facts[name]}" for name in ("cuda", "hip") if facts[name]]
    text = f"{facts['torch']}, built {'for ' + ' and '.join(built) if built else 'for the CPU'}"
    if not facts["distributed"]:
        return stop("torch", f"{text}, without torch.distributed", _REINSTALL)
    return ok("torch", text)


def _backends(facts: Facts) -> CheckResult:
    states = facts["backends"]
    there = [name for name, is_there in states.items() if is_there]
    absent = [name for name, is_there in states.items() if not is_there]
    if "nccl" in there and facts["nccl"]:
        there[there.index("nccl")] = f"nccl {facts['nccl']}"
    text = f"{', '.join(there) or 'none'}; not in this torch: {', '.join(absent) or 'none'}"
    if not states.get("gloo"):
        return stop("backends", text, f"ranks on the CPU need gloo: {_REINSTALL}")
    return ok("backends", text)


def _gpus(facts: Facts, counted: int) -> list[CheckResult]:
    if why := facts.get("gpu_problem"):
        return [note("torch's GPUs", why, "torch cannot use them; look at the driver")]
    seen = facts["gpus"]
    names = [
        f"{gpu['name']} ({gpu['capability']}, {gpu['memory'] >> 20} MiB, {gpu['free'] >> 20} free)"
        for gpu in seen
    ]
    found = [ok("torch's GPUs", "; ".join(names))] if names else []
    if len(seen) != counted:
        found.append(
            note(
                "torch's GPUs",
                f"torch sees {len(seen)}, the plugin counts {counted}",
                "tests get the plugin's number of GPUs: please report this with the whole output",
            )
        )
    return found


def _recorder(facts: Facts) -> CheckResult:
    problem: str = facts["recorder"]
    if problem:
        name = problem.partition("=")[0]
        fix = f"unset {name}" if name.isupper() else _REINSTALL
        return note("recorder", problem, fix)
    return ok("recorder", "torch's flight recorder is available: hangs are proved in half a second")
