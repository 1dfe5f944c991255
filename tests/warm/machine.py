"""A machine of this kernel that a program is started on: a network of its own, and a name."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """A machine in which a warm interpreter runs programs: its namespaces, clock and folder."""

    network: str
    """Name of the network namespace."""
    name: str
    """Name of the host."""
    before: str = ""
    """Shell commands for mounts of the machine's own, each with ``&&`` behind it."""
    ahead: int = 0
    """Seconds by which the machine's monotonic clock is ahead: for fresh interpreters alone."""
    cwd: str = ""
    """The folder in which programs begin instead of that which they are given: ``before`` may have
    mounted over that; empty to leave it."""

    @property
    def commands(self) -> str:
        """What a shell does in new namespaces before the program begins."""
        return f"{self.before}hostname {self.name}"

    def prefix(self) -> list[str]:
        """What to put before a command for it to run there."""
        there = ["ip", "netns", "exec", self.network, "unshare", "-u", "-m"]
        if self.ahead:
            there += ["-T", f"--monotonic={self.ahead}"]
        begin = f"cd {shlex.quote(self.cwd)} && " if self.cwd else ""
        return [*there, "sh", "-c", f'{self.commands} && {begin}exec "$@"', "sh"]
