"""Entry point of an agent that an engine has started.

It reads its role from stdin: every user of the machine can read a command line, and the role has a
secret. It ends when its stdin is closed, which is when its starter has ended.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from pytest_ddp.extensions.machines.agent.main import complain, live
from pytest_ddp.system.stdlib import os


def main(role: dict[str, Any]) -> NoReturn:
    """Run the agent that ``role`` describes; ``engines/sending.py`` writes the role."""
    os.environ.update(role["environment"])
    node = role["node"]
    try:
        os.chdir(role["folder"])
    except OSError as error:
        sys.exit(complain(node, f"pytest's folder does not exist here: {error}"))
    secret = role["secret"].encode()
    sys.exit(live(node, role["address"], role["port"], secret, lifeline=sys.stdin.fileno()))
