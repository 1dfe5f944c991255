"""The command line of the plugin's processes; imported by the process that starts them."""

from __future__ import annotations

import sys
from typing import Any

from pytest_ddp.system.stdlib import json, subprocess

_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from {module} import main; main(json.loads(sys.argv[2]))"
)
"""Argument of ``python -c``: sets the controller's import path before any import of ours."""
OF_RANKS = "pytest_ddp.rank.main"


def command(role: dict[str, Any], module: str = OF_RANKS) -> list[str]:
    """The command line of a process that runs a module's ``main`` with this role.

    Hosts and spawned ranks run :func:`pytest_ddp.rank.main.main`. Every user of the machine can
    read it, so it must not contain a secret.
    """
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    bootstrap = _BOOTSTRAP.format(module=module)
    return [sys.executable, *flags, "-c", bootstrap, json.dumps(sys.path), json.dumps(role)]
