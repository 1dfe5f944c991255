"""From the name of an engine to the engine; no other is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from typing import Any

from pytest_ddp.extensions.machines.engines import options
from pytest_ddp.extensions.machines.engines.engine import Engine
from pytest_ddp.extensions.machines.engines.options import Machines

_ROOM = "pytest_ddp.extensions.machines.engines"
_KINDS = {
    options.EngineName.TORCHRUN: "Torchrun",
    options.EngineName.RAY: "Ray",
    options.EngineName.SLURM: "Slurm",
    options.EngineName.SSH: "Ssh",
}
"""The class in the module of the engine's name."""


def find(machines: Machines, python: str | None, environment: Mapping[str, str]) -> Engine:
    """The engine that the options name, in the pytest process.

    Args:
        machines: names the engine.
        python: the interpreter on other machines; None for the path of this one.
        environment: variables of a launcher.

    Raises:
        EngineError: the engine cannot be used here.
    """
    return _kind(machines.engine).for_session(machines, python, environment)


def as_told(engine: Engine) -> dict[str, Any]:
    """Plain values that make the same engine in the coordinator's process."""
    return {"name": engine.name, "values": asdict(engine)}


def from_told(role: dict[str, Any]) -> Engine:
    """The engine of :func:`as_told`."""
    return _kind(options.EngineName(role["name"]))(**role["values"])


def _kind(name: options.EngineName) -> type[Engine]:
    kind: type[Engine] = getattr(import_module(f"{_ROOM}.{name}"), _KINDS[name])
    return kind
