"""This machine, and hosts that the ssh command reaches without a question."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pytest_ddp.extensions.machines.engines import sending
from pytest_ddp.extensions.machines.engines.commands import Commands
from pytest_ddp.extensions.machines.engines.engine import ADDRESS, EngineError
from pytest_ddp.extensions.machines.engines.options import Engine as Name
from pytest_ddp.extensions.machines.engines.options import Machines
from pytest_ddp.system.own import subprocess

_OPTIONS = (
    # Neither a password nor the key of a new host can be asked for.
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "LogLevel=ERROR"),
    # What the user's config forwards for a login, and a terminal, are nothing for agents.
    *("-o", "ClearAllForwardings=yes", "-T"),
)
_SSH_FAILED = 255


@dataclass
class Ssh(Commands):
    """Hosts by the names that ssh knows them by; its config says the rest."""

    name: ClassVar[Name] = Name.SSH

    @classmethod
    def asked(cls, machines: Machines, python: str | None, environment: Mapping[str, str]) -> Ssh:
        return cls(list(machines.hosts), python, environment.get(ADDRESS))

    def _on(self, host: str, command: list[str]) -> list[str]:
        # The shell there parses it once more.
        return ["ssh", *_OPTIONS, host, shlex.join(command)]

    def _addresses(self) -> Iterator[str]:
        return map(_real_name, self.hosts)

    def _way_out(self, host: str, code: int) -> str:
        if code == _SSH_FAILED:
            return f" `ssh -o BatchMode=yes {host} true` has to work, without a question"
        return sending.way_to_python(code)


def _real_name(host: str) -> str:
    """What ssh's config makes of a host."""
    try:
        asked = subprocess.run(
            ["ssh", "-G", host], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    except FileNotFoundError:
        raise EngineError("there is no ssh here: install OpenSSH's client") from None
    if asked.returncode:
        raise EngineError(f"`ssh -G {host}` failed: {asked.stderr.strip()}")
    known = dict(line.split(" ", 1) for line in asked.stdout.splitlines() if " " in line)
    return known.get("hostname", host)
