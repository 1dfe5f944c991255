"""This machine, and hosts that the ssh command reaches without a prompt."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pytest_ddp.extensions.machines.engines import sending
from pytest_ddp.extensions.machines.engines.commands import Commands
from pytest_ddp.extensions.machines.engines.engine import ADDRESS, EngineError
from pytest_ddp.extensions.machines.engines.options import EngineName as Name
from pytest_ddp.extensions.machines.engines.options import Machines
from pytest_ddp.system.stdlib import subprocess

_OPTIONS = (
    # There is no terminal for a password, or to accept the key of a new host.
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "LogLevel=ERROR"),
    # Agents need neither a terminal nor what the user's config forwards for a login.
    *("-o", "ClearAllForwardings=yes", "-T"),
)
_SSH_FAILED = 255


@dataclass
class Ssh(Commands):
    """Starts agents on hosts by their names for ssh, whose config has the rest."""

    name: ClassVar[Name] = Name.SSH

    @classmethod
    def for_session(
        cls, machines: Machines, python: str | None, environment: Mapping[str, str]
    ) -> Ssh:
        return cls(list(machines.hosts), python, environment.get(ADDRESS))

    def _on(self, host: str, command: list[str]) -> list[str]:
        # The shell there parses it once more.
        return ["ssh", *_OPTIONS, host, shlex.join(command)]

    def _addresses(self) -> Iterator[str]:
        return map(_real_name, self.hosts)

    def _way_out(self, host: str, code: int) -> str:
        if code == _SSH_FAILED:
            return f" `ssh -o BatchMode=yes {host} true` has to work, without a prompt"
        return sending.way_to_python(code)


def _real_name(host: str) -> str:
    """The real name of a host, by ssh's config."""
    try:
        done = subprocess.run(
            ["ssh", "-G", host], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    except FileNotFoundError:
        raise EngineError("ssh is not on PATH: install OpenSSH's client") from None
    if done.returncode:
        raise EngineError(f"`ssh -G {host}` failed: {done.stderr.strip()}")
    known = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    return known.get("hostname", host)
