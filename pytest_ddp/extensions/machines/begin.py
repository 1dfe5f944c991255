"""The start of a session on several machines: this node becomes pytest, or an agent."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from pytest_ddp.extensions.machines.engines import options
from pytest_ddp.extensions.machines.engines.engine import (
    LAUNCHER_VARIABLES,
    Engine,
    EngineError,
    find_engine,
)
from pytest_ddp.protocol.host_messages import PLACE_VARIABLES
from pytest_ddp.settings.options import Options
from pytest_ddp.settings.rules import option_error
from pytest_ddp.system.stdlib import os

ENGINE = pytest.StashKey[Engine]()
"""The engine of the session, on node 0."""
_QUESTIONS = (
    *("help", "version", "collectonly", "markers", "cacheshow"),
    *("showfixtures", "show_fixtures_per_test"),
)
"""Options with which pytest runs no test."""
_AGENT = "pytest_ddp.extensions.machines.agent.main"


def begin(config: pytest.Config) -> int | None:
    """Find this node's engine, and be its agent on nodes other than 0.

    Returns:
        the exit code of an agent, or None on node 0, which goes on as pytest.

    Raises:
        pytest.UsageError: this is no node of the engine, or an option does not work with machines.
    """
    Options.from_config(config)  # other wrong options are reported before anything starts
    own = options.read(config)
    machines = own.machines
    assert machines is not None
    if refused := next(_refused(config), None):
        raise option_error(f"--ddp-machines does not go with {refused}.")
    try:
        engine = find_engine(machines, own.machines_python, os.environ)
    except EngineError as error:
        raise option_error(f"--ddp-machines={machines.engine}: {error}.") from None
    if engine.node:
        if is_question(config.option):
            return 0  # node 0 answers, and starts nothing
        # Imported by name, since the agent imports modules of this room.
        code: int = import_module(_AGENT).be_agent(engine)
        return code
    config.stash[ENGINE] = engine
    _hide_launcher(config)
    return None


def is_question(option: argparse.Namespace) -> bool:
    """Whether a session with these options runs no test, and needs no other machine."""
    return any(getattr(option, question, None) for question in _QUESTIONS)


def _refused(config: pytest.Config) -> Iterator[str]:
    """What does not work on several machines, by name, with the way out."""
    option = config.option
    if hasattr(config, "workerinput") or getattr(option, "tx", None):
        yield "workers of pytest-xdist (-n): leave it out"
    if option.usepdb or option.trace:
        yield "--pdb and --trace: no terminal reaches ranks of other machines"
    kind: Any = getattr(sys.modules.get("coverage"), "Coverage", None)
    measuring = None if kind is None else kind.current()
    if measuring is not None and not measuring.get_option("run:parallel"):
        yield (
            "coverage run without --parallel-mode: on a shared file system nodes would write over "
            "each other's data. Add it and run coverage combine, or use pytest --cov"
        )


def _hide_launcher(config: pytest.Config) -> None:
    """Hide the launcher's variables from tests without ranks, until the session ends."""
    names = (*PLACE_VARIABLES, *LAUNCHER_VARIABLES)
    found = {name: os.environ.pop(name) for name in names if name in os.environ}
    config.add_cleanup(lambda: os.environ.update(found))
