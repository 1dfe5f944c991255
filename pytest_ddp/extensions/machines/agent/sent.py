"""Entry point of an agent that an engine has started, on a machine of which pytest knows a name.

What it has to know comes by stdin: a command line can be read by every user of the machine, and a
secret is in it. stdin is also what it lives by: it ends with whoever has started it.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from pytest_ddp.extensions.machines.agent.main import complain, live
from pytest_ddp.system.own import os


def main(told: dict[str, Any]) -> NoReturn:
    """Be the agent that ``told`` describes; ``engines/sending.py`` writes it."""
    os.environ.update(told["environment"])
    node = told["node"]
    try:
        os.chdir(told["folder"])
    except OSError as error:
        sys.exit(complain(node, f"the folder that pytest was called in is not there: {error}"))
    secret = told["secret"].encode()
    sys.exit(live(node, told["address"], told["port"], secret, lifeline=sys.stdin.fileno()))
