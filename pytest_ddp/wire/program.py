"""The command line of hosts and spawned ranks; imported by the process that starts them."""

from __future__ import annotations

import sys
from typing import Any

from pytest_ddp.system.own import json, subprocess

_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pytest_ddp.rank.main import main; main(json.loads(sys.argv[2]))"
)
"""Given to ``python -c``: the controller's import path comes before any import of ours."""


def command(role: dict[str, Any]) -> list[str]:
    """The command line of a process that runs :func:`pytest_ddp.rank.main.main` with this role."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", _BOOTSTRAP, json.dumps(sys.path), json.dumps(role)]
