"""Machines of one kernel: network namespaces with names and TMPDIRs of their own, joined by a veth
pair, or by a switch that a test has in its hands.

What they do not have is a wall clock and a file system of their own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tests.acceptance.extensions.machines.switch import Switch
from tests.acceptance.suite import Finished, Running, Suite
from tests.warm import interpreter
from tests.warm.machine import Machine

NAMES = ("alpha", "beta", "gamma")
ADDRESSES = ("10.77.0.1", "10.77.0.2", "10.77.0.3")
DEVICE = "veth0"
"""The interface of each machine."""
PORT = "29517"
"""The launcher's, or without a store the coordinator's."""
_PATIENCE = 3
_LETTERS = itertools.cycle("abcdefghijklmnopqrstuvwxyz")
"""Tell the clusters of one process apart; a device's name has room for 15 characters."""


def problem() -> str:
    """Why there can be no cluster here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    if missing := [name for name in ("ip", "unshare", "setpriv") if shutil.which(name) is None]:
        return f"no {' and no '.join(missing)}: apt-get install iproute2 util-linux"
    made = subprocess.run(["unshare", "-n", "-u", "true"], check=False, capture_output=True)
    return "" if made.returncode == 0 else f"no namespaces: {made.stderr.decode().strip()}"


@dataclass(frozen=True)
class Cluster:
    """All machines of a cluster, while they are there."""

    mark: str
    folder: Path
    size: int
    servers: set[int] = field(default_factory=set)
    """Processes of the machines that are nobody's survivors."""

    @classmethod
    @contextlib.contextmanager
    def up(cls, size: int = 2, switch: Switch | None = None) -> Iterator[Cluster]:
        """Have a cluster of machines for a block; more than two take a switch."""
        mark = f"pddp{os.getpid()}{next(_LETTERS)}"
        spaces = [f"{mark}-{name}" for name in NAMES[:size]]
        with tempfile.TemporaryDirectory(prefix="ddpc-") as folder, contextlib.ExitStack() as end:
            for space in spaces:
                _ip("netns", "add", space)
                end.callback(_ip, "netns", "del", space)
            if switch is not None:
                end.enter_context(switch.between(mark, spaces, DEVICE))
            else:
                _ip("link", "add", DEVICE, "netns", spaces[0], "type", "veth", "peer", "name",
                    DEVICE, "netns", spaces[1])  # fmt: skip
            for space, address in zip(spaces, ADDRESSES, strict=False):
                _ip("-n", space, "addr", "add", f"{address}/24", "dev", DEVICE)
                _ip("-n", space, "link", "set", DEVICE, "up")
                _ip("-n", space, "link", "set", "lo", "up")
            cluster = cls(mark, Path(folder), size)
            end.callback(cluster.kill)
            yield cluster

    def run(
        self,
        suite: Suite,
        *args: str,
        timeout: float = 90.0,
        env: Mapping[str, str] | None = None,
        of: Mapping[int, Mapping[str, str]] | None = None,
        torchrun: bool = False,
        folder_1: Path | None = None,
        ahead_1: int = 0,
        program: Sequence[str] = (),
        before_1: str = "",
    ) -> Session:
        """Run pytest on all machines to the end, at most ``timeout`` quiet seconds; see
        :meth:`start`."""
        alpha, *others = self.start(
            suite,
            *args,
            env=env,
            of=of,
            torchrun=torchrun,
            folder_1=folder_1,
            ahead_1=ahead_1,
            program=program,
            before_1=before_1,
        )
        finished = alpha.finish(timeout * _PATIENCE)
        ended = time.monotonic()
        agents = tuple(other.finish(30 * _PATIENCE) for other in others)
        return Session(finished, agents, time.monotonic() - ended)

    def start(
        self,
        suite: Suite,
        *args: str,
        env: Mapping[str, str] | None = None,
        of: Mapping[int, Mapping[str, str]] | None = None,
        torchrun: bool = False,
        folder_1: Path | None = None,
        ahead_1: int = 0,
        program: Sequence[str] = (),
        before_1: str = "",
    ) -> list[Running]:
        """Start pytest on all machines; node 0's comes first.

        Args:
            suite: what node 0 runs.
            args: pytest's arguments on all.
            env: variables of all nodes.
            of: variables that are otherwise on single nodes.
            torchrun: whether it starts them, instead of this helper as a launcher without a store.
            folder_1: the suite on node 1, mounted over the one of node 0.
            ahead_1: seconds by which node 1's monotonic clock is ahead.
            program: what runs ``-m pytest``, as Python's arguments.
            before_1: what node 1 does first, as of :meth:`on`.
        """
        everywhere = {"PYTEST_DDP_SECRET": "of the tests"} if not torchrun else {}
        everywhere |= dict(env or {})
        nodes = []
        for node in reversed(range(self.size)):
            variables = everywhere | dict((of or {}).get(node, {}))
            folder, ahead = (folder_1, ahead_1) if node == 1 else (None, 0)
            before = before_1 if node == 1 else ""
            place = self, node, torchrun, folder, program
            start = _Start(*place, ahead=ahead, before=before, fresh=suite.fresh)
            nodes.append(_running(suite, args, variables, start))
        return nodes[::-1]

    def start_node(self, suite: Suite, node: int, *args: str) -> Running:
        """Start one more on a machine, as the launcher without a store does."""
        variables = {"PYTEST_DDP_SECRET": "of the tests"}
        return _running(suite, args, variables, _Start(self, node, False, None))

    def execute(
        self, node: int, program: str, *args: str, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a Python program on a machine, which knows nothing of the session."""
        command = ["-c", textwrap.dedent(program), *args]
        return interpreter.run(command, timeout=timeout, machine=self.machine(node))

    def start_alone(
        self,
        suite: Suite,
        *args: str,
        env: Mapping[str, str | None] | None = None,
        node: int = 0,
    ) -> Running:
        """Start pytest on one machine, where an engine is to start the agents, or nobody."""
        start = _Start(self, node, torchrun=False, mounted=None, launched=False)
        number = len(list(suite.directory.parent.iterdir()))
        return Running(suite.directory, number, args, env or {}, start)

    def run_alone(
        self, suite: Suite, *args: str, env: Mapping[str, str | None] | None = None
    ) -> Finished:
        """Run pytest on one machine to its end; see :meth:`start_alone`."""
        return self.start_alone(suite, *args, env=env).finish(90 * _PATIENCE)

    def on(self, node: int, before: str = "", ahead: int = 0) -> list[str]:
        """What to put before a command for it to run on a machine.

        Args:
            node: which.
            before: shell commands, each with ``&&`` behind it.
            ahead: seconds by which the machine's monotonic clock is ahead.
        """
        return self.machine(node, before, ahead).prefix()

    def machine(self, node: int, before: str = "", ahead: int = 0, cwd: str = "") -> Machine:
        """The machine of a node, with the arguments of :meth:`on`; programs begin in ``cwd``, if
        given."""
        return Machine(self._network(node), NAMES[node], before, ahead, cwd)

    def _network(self, node: int) -> str:
        return f"{self.mark}-{NAMES[node]}"

    def environment(self, node: int) -> dict[str, str]:
        """Variables of processes of a machine."""
        tempdir = self.folder / NAMES[node]
        tempdir.mkdir(exist_ok=True)
        return {"TMPDIR": str(tempdir)}

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Have no packet come through in a block."""
        space = self._network(1)
        _ip("-n", space, "link", "set", DEVICE, "down")
        yield
        _ip("-n", space, "link", "set", DEVICE, "up")

    def survivors(self) -> list[str]:
        """Command lines of processes of the cluster that still live."""
        return [command for pid, command in self._processes() if pid not in self.servers]

    def survivors_after(self, seconds: float) -> list[str]:
        """Command lines of processes of the cluster that live on after so many seconds."""
        deadline = time.monotonic() + seconds
        while (left := self.survivors()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def kill(self) -> None:
        for pid, _ in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _processes(self) -> Iterator[tuple[int, str]]:
        """The pid and command line of each process in the machines' networks.

        Environments do not show a process's machine: a fork has that of the warm interpreter.
        """
        networks = [
            os.stat(f"/run/netns/{self._network(node)}").st_ino for node in range(self.size)
        ]
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and (entry / "ns/net").stat().st_ino in networks:
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    yield int(entry.name), command


@dataclass(frozen=True)
class Session:
    """The ends of pytest and its agents on all nodes."""

    alpha: Finished
    """The end of pytest on node 0."""
    agents: tuple[Finished, ...]
    """The ends of the agents on the other nodes."""
    later: float
    """Seconds from pytest's end to the last agent's."""

    @property
    def beta(self) -> Finished:
        return self.agents[0]

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdicts by the names of the test functions."""
        results = self.alpha.results.values()
        return {result.nodeid.rpartition(":")[2]: result.verdict for result in results}

    @cached_property
    def text(self) -> str:
        others = (f"=== node {node}\n{end.tail()}" for node, end in enumerate(self.agents, 1))
        return "\n".join((self.alpha.tail(), *others))


@dataclass(frozen=True)
class _Start:
    """Starts a Python program on one machine, as its launcher would."""

    cluster: Cluster
    node: int
    torchrun: bool
    mounted: Path | None
    program: Sequence[str] = ()
    launched: bool = True
    """Whether a launcher starts the program at all."""
    ahead: int = 0
    before: str = ""
    fresh: bool = False

    def __call__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
    ) -> interpreter.Process | subprocess.Popen[bytes]:
        # What starts pytest by itself gives it a fresh one, and a clock cannot be moved later.
        fresh = self.fresh or self.program or self.ahead
        return (interpreter.start_fresh if fresh else interpreter.start)(
            [*self._launcher(), *self.program, *arguments],
            cwd=cwd,
            env={**self._variables(), **env, **self.cluster.environment(self.node)},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            machine=self._machine(cwd),
        )

    def _machine(self, cwd: Path) -> Machine:
        mount = f"mount --bind {self.mounted} {cwd} && " if self.mounted else ""
        return self.cluster.machine(self.node, self.before + mount, self.ahead, str(cwd))

    def _launcher(self) -> list[str]:
        if not self.torchrun:
            return []
        place = [f"--node-rank={self.node}", f"--master-addr={ADDRESSES[0]}"]
        size = [f"--nnodes={self.cluster.size}", "--nproc-per-node=1", f"--master-port={PORT}"]
        return ["-m", "torch.distributed.run", *size, *place]

    def _variables(self) -> dict[str, str]:
        if self.torchrun or not self.launched:
            return {}
        place = {"RANK": str(self.node), "WORLD_SIZE": str(self.cluster.size)}
        return place | {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": PORT}


def _running(
    suite: Suite, args: Sequence[str], variables: Mapping[str, str], start: _Start
) -> Running:
    arguments = ("--ddp-machines=torchrun", *args)
    number = 10 * len(list(suite.directory.parent.iterdir())) + start.node
    return Running(suite.directory, number, arguments, variables, start)


def wait_for(file: Path) -> None:
    """Wait until an inner test has made a file.

    Raises:
        AssertionError: it has not, in a time in which it would have under any load.
    """
    deadline = time.monotonic() + 120
    while not file.exists():
        assert time.monotonic() < deadline, f"no {file.name}"
        time.sleep(0.05)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
