"""From the name of an engine to the engine."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pytest_ddp.asked import machines as asked
from pytest_ddp.asked.machines import Machines
from pytest_ddp.machines.engines.engine import Engine, EngineError
from pytest_ddp.machines.engines.ray import Ray
from pytest_ddp.machines.engines.torchrun import Torchrun


def find(machines: Machines, python: str | None, environment: Mapping[str, str]) -> Engine:
    """The engine that is asked for, in the pytest process.

    Args:
        machines: which one.
        python: the interpreter on other machines; None if it is where this one is.
        environment: variables of a launcher.

    Raises:
        EngineError: this is no place for it.
    """
    match machines.engine:
        case asked.Engine.TORCHRUN:
            return Torchrun.from_environment(environment)
        case asked.Engine.RAY:
            if find_spec("ray") is None:
                raise EngineError("Ray is not installed here: pip install 'pytest-ddp[ray]'")
            return Ray(machines.count, python)
    raise AssertionError(machines)


def as_told(engine: Engine) -> dict[str, Any]:
    """What makes the same engine in the hub's process."""
    kind = type(engine)
    return {"module": kind.__module__, "kind": kind.__name__, "told": engine.as_json()}


def from_told(told: dict[str, Any]) -> Engine:
    """The engine back."""
    engine: Engine = getattr(import_module(told["module"]), told["kind"])(**told["told"])
    return engine
