"""Machines on which a command starts the agent, and runs as long as the agent."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO

from pytest_ddp.extensions.machines.engines import sending
from pytest_ddp.extensions.machines.engines.engine import (
    Engine,
    EngineError,
    MeetingPoint,
    ShowWait,
)
from pytest_ddp.system import tempfiles
from pytest_ddp.system.stdlib import os, socket, subprocess, time

_END_LIMIT = 3.0
"""Seconds for all agents to end after the end of the session."""
_ROOM = 1 << 18
"""Bytes of a pipe: room for an environment before it is read."""
_ANY_PORT = 9
"""No packet is sent: connecting a UDP socket selects the kernel's own address on that route."""


class _Running:
    """One command."""

    def __init__(self, command: list[str], role: bytes, environment: Mapping[str, str]) -> None:
        self._output: IO[bytes] = os.fdopen(tempfiles.create("pytest-ddp agent"), "w+b")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            pipesize=_ROOM,
            env=environment,
            # Ctrl-C is for pytest alone, which ends the agents.
            start_new_session=True,
        )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its exit code says more
            self.process.stdin.write(role)
            self.process.stdin.flush()

    def output(self) -> str:
        self._output.seek(0)
        return self._output.read().decode(errors="replace")


@dataclass
class Commands(Engine):
    """Hosts beside this machine, in the order of their numbers."""

    hosts: list[str]
    python: str | None
    """The interpreter on the hosts; None for the path of this one."""
    address: str | None
    """The address of this machine, if the user has set it; None otherwise."""

    def __post_init__(self) -> None:
        self._running: dict[int, _Running] = {}

    @property
    def nodes(self) -> int:
        return 1 + len(self.hosts)

    @abstractmethod
    def _on(self, host: str, command: list[str]) -> list[str]:
        """The command that runs a command on a host, with our stdin."""

    def _environment(self) -> Mapping[str, str]:
        """The environment with which these commands are started."""
        return os.environ

    @abstractmethod
    def _addresses(self) -> Iterable[str]:
        """Return the addresses of the hosts, by name or number."""

    @abstractmethod
    def _way_out(self, host: str, code: int) -> str:
        """What may be wrong if a command has ended with this code; begins with a blank."""

    def listens_at(self, show_wait: ShowWait) -> tuple[str, int]:
        """The user's MASTER_ADDR, or the address that this machine has on its way to the others.

        Raises:
            EngineError: there is no way, or more than one address.
        """
        if self.address:
            return self.address, 0
        found = {}
        for host, other in zip(self.hosts, self._addresses(), strict=True):
            try:
                found[host] = _own_address_towards(other)
            except OSError as error:
                raise EngineError(
                    f"no way from this machine to {host} ({other}): {error}. Set MASTER_ADDR to "
                    "the address of this machine by which it is reached from there"
                ) from error
        if len({*found.values()}) > 1:
            listed = ", ".join(f"{address} towards {host}" for host, address in found.items())
            raise EngineError(
                f"this machine has several addresses: {listed}. Set MASTER_ADDR to one by which "
                "all of them reach it"
            )
        return next(iter(found.values()), "127.0.0.1"), 0

    def bring(self, meeting: MeetingPoint) -> None:
        for node, host in enumerate(self.hosts, start=1):
            command = self._on(host, sending.command(self.python))
            role = sending.role_for_stdin(node, meeting, self.python)
            self._running[node] = _Running(command, role, self._environment())

    def ended(self) -> Mapping[int, str]:
        return {
            node: self._how(node, running)
            for node, running in self._running.items()
            if running.process.poll() is not None
        }

    def _how(self, node: int, running: _Running) -> str:
        host, code = self.hosts[node - 1], running.process.returncode
        words = sending.how_it_ended("its command", code, running.output())
        return f"node {node} ({host}) did not come: {words}.{self._way_out(host, code)}"

    def hint(self) -> str:
        return "MASTER_ADDR names another address of this machine, if they cannot reach that one"

    def end(self) -> None:
        deadline = time.monotonic() + _END_LIMIT
        for running in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(max(0.0, deadline - time.monotonic()))
            running.process.kill()
            running.process.wait()


def _own_address_towards(other: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, _ANY_PORT))
        address: str = probe.getsockname()[0]
        return address
