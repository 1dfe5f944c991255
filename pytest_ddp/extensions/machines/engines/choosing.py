"""From the name of an engine to the engine; no other is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from typing import Any

from pytest_ddp.extensions.machines.engines import options as asked
from pytest_ddp.extensions.machines.engines.engine import Engine
from pytest_ddp.extensions.machines.engines.options import Machines

_ROOM = "pytest_ddp.extensions.machines.engines"
_KINDS = {
    asked.Engine.TORCHRUN: "Torchrun",
    asked.Engine.RAY: "Ray",
    asked.Engine.SLURM: "Slurm",
    asked.Engine.SSH: "Ssh",
}
"""The class in the module of the engine's name."""


def find(machines: Machines, python: str | None, environment: Mapping[str, str]) -> Engine:
    """The engine that is asked for, in the pytest process.

    Args:
        machines: which one.
        python: the interpreter on other machines; None if it is where this one is.
        environment: variables of a launcher.

    Raises:
        EngineError: this is no place for it.
    """
    return _kind(machines.engine).asked(machines, python, environment)


def as_told(engine: Engine) -> dict[str, Any]:
    """What makes the same engine in the hub's process."""
    return {"name": engine.name, "told": asdict(engine)}


def from_told(told: dict[str, Any]) -> Engine:
    """The engine back."""
    return _kind(asked.Engine(told["name"]))(**told["told"])


def _kind(name: asked.Engine) -> type[Engine]:
    kind: type[Engine] = getattr(import_module(f"{_ROOM}.{name}"), _KINDS[name])
    return kind
