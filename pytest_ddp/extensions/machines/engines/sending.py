"""The command that starts an agent on another machine, and the agent's role on its stdin."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

from pytest_ddp.extensions.machines.engines.engine import MeetingPoint
from pytest_ddp.system.stdlib import json, os, subprocess

_BOOTSTRAP = (
    "import json, sys; role = json.loads(sys.stdin.readline()); "
    "here = '.'.join(map(str, sys.version_info[:3])); here == role['python'] or "
    "sys.exit('python is ' + here + ' there and ' + role['python'] + ' on node 0'); "
    "sys.path[:] = role['path'] or sys.path; "
    "from pytest_ddp.extensions.machines.agent import main; main.main_by_stdin(role)"
)
"""The program that starts an agent; in an interpreter of another version it exits, since that must
not import our modules."""
_ITS_OWN = re.compile(
    r"HOME$|USER$|LOGNAME$|SHELL$|MAIL$|PWD$|OLDPWD$|HOSTNAME$|TMPDIR$|TERM$|DISPLAY$|XAUTHORITY$"
    r"|(SSH|XDG|DBUS|SLURM|SLURMD|PMI|PMIX|RAY|KUBERNETES|PYTEST_DDP)_|_$"
    r"|(CUDA|HIP|ROCR|NVIDIA)_VISIBLE_DEVICES$|GPU_DEVICE_ORDINAL$|ZE_AFFINITY_MASK$"
    r"|ONEAPI_DEVICE_SELECTOR$"
)
"""Matches variables that are about a machine, or a login there."""
_NOT_FOUND = (126, 127)
"""Exit codes of shells and of Ray's actor, where there is no such program or none that can run."""
_LINES = 3
"""The last lines of a failed command's output, which have its reason."""


def command(python: str | None) -> list[str]:
    """The command of an agent, which reads its role from stdin.

    Args:
        python: the interpreter there; None for the path of this one.
    """
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [python or sys.executable, *flags, "-c", _BOOTSTRAP]


def role_for_stdin(node: int, meeting: MeetingPoint, python: str | None) -> bytes:
    """Return an agent's role as a line: its node, the secret, node 0's folder and environment.

    Under torchrun each node is called with its own environment; here there is one call, and tests
    find its variables on all machines.
    """
    role = {
        "python": ".".join(map(str, sys.version_info[:3])),
        # Another interpreter has its own packages.
        "path": [] if python else sys.path,
        "folder": os.getcwd(),
        "environment": _for_others(os.environ),
        "node": node,
        "address": meeting.address,
        "port": meeting.port,
        "secret": meeting.secret,
    }
    return json.dumps(role).encode() + b"\n"


def _for_others(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environment.items() if not _ITS_OWN.match(name)}


def way_to_python(code: int) -> str:
    """What to do if an interpreter was not found, by an exit code; begins with a blank."""
    return " --ddp-machines-python names the interpreter there" if code in _NOT_FOUND else ""


def how_it_ended(what: str, code: int, said: str) -> str:
    """Why an agent did not connect, by its own end or that of the command that starts it.

    Args:
        what: the subject of the sentence.
        code: its exit code.
        said: its output.
    """
    last = [line.strip() for line in said.splitlines() if line.strip()][-_LINES:]
    return f"{what} ended with code {code}: {' / '.join(last) or 'no output'}"
