"""A machine of this kernel that a program is started on: a network of its own, and a name."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Where it is."""

    network: str
    """Name of the network namespace."""
    name: str
    """The host's."""
    before: str = ""
    """Shell commands of its own mounts, each with ``&&`` behind it."""
    ahead: int = 0
    """Seconds by which its monotonic clock is ahead: for fresh interpreters alone."""
    cwd: str = ""
    """Where programs begin if not where they are to: its own mounts may have covered that."""

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
