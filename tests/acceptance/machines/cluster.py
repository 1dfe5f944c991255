"""Two machines of one kernel: network namespaces joined by a veth pair, with names and TMPDIRs
of their own.

What they do not have is a clock and a file system of their own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.acceptance.suite import Finished, Running, Suite

NAMES = ("alpha", "beta")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
_PORT = "29517"
MARK = "DDP_TEST_CLUSTER"
"""In the environment of each process of a cluster, by which survivors are found."""
_PATIENCE = 3


def problem() -> str:
    """Why there can be no such machines here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    if missing := [name for name in ("ip", "unshare", "setpriv") if shutil.which(name) is None]:
        return f"no {' and no '.join(missing)}: apt-get install iproute2 util-linux"
    made = subprocess.run(["unshare", "-n", "-u", "true"], check=False, capture_output=True)
    return "" if made.returncode == 0 else f"no namespaces: {made.stderr.decode().strip()}"


@dataclass(frozen=True)
class Cluster:
    """Both machines, while they are there."""

    mark: str
    folder: Path

    @classmethod
    @contextlib.contextmanager
    def up(cls) -> Iterator[Cluster]:
        """Have them for a block, in which no other cluster of this process may be."""
        mark = f"pddp{os.getpid()}"
        spaces = [f"{mark}-{name}" for name in NAMES]
        with tempfile.TemporaryDirectory(prefix="ddpc-") as folder, contextlib.ExitStack() as end:
            for space in spaces:
                _ip("netns", "add", space)
                end.callback(_ip, "netns", "del", space)
            _ip("link", "add", "veth0", "netns", spaces[0], "type", "veth", "peer", "name",
                "veth0", "netns", spaces[1])  # fmt: skip
            for space, address in zip(spaces, ADDRESSES, strict=True):
                _ip("-n", space, "addr", "add", f"{address}/24", "dev", "veth0")
                _ip("-n", space, "link", "set", "veth0", "up")
                _ip("-n", space, "link", "set", "lo", "up")
            cluster = cls(mark, Path(folder))
            end.callback(cluster.kill)
            yield cluster

    def run(
        self,
        suite: Suite,
        *args: str,
        timeout: float = 90.0,
        env: Mapping[str, str] | None = None,
        of_node_1: Mapping[str, str] | None = None,
        torchrun: bool = False,
        folder_1: Path | None = None,
    ) -> Session:
        """Run both to their ends, at most ``timeout`` quiet seconds; see :meth:`start`."""
        alpha, beta = self.start(
            suite, *args, env=env, of_node_1=of_node_1, torchrun=torchrun, folder_1=folder_1
        )
        finished = alpha.finish(timeout * _PATIENCE)
        ended = time.monotonic()
        return Session(finished, beta.finish(30 * _PATIENCE), time.monotonic() - ended)

    def start(
        self,
        suite: Suite,
        *args: str,
        env: Mapping[str, str] | None = None,
        of_node_1: Mapping[str, str] | None = None,
        torchrun: bool = False,
        folder_1: Path | None = None,
    ) -> tuple[Running, Running]:
        """Start pytest on both machines.

        Args:
            suite: what node 0 runs.
            args: pytest's arguments on both.
            env: variables of both nodes.
            of_node_1: variables that are otherwise on node 1.
            torchrun: whether it starts them, instead of this helper as a launcher without a store.
            folder_1: the suite on node 1, mounted over the one of node 0.
        """
        both = {"PYTEST_DDP_SECRET": "of the tests"} if not torchrun else {}
        both |= dict(env or {})
        nodes = []
        for node in (1, 0):
            variables = both | (dict(of_node_1 or {}) if node else {})
            start = _Start(self, node, torchrun, folder_1 if node else None)
            arguments = ("--ddp-machines=torchrun", *args)
            number = 10 * len(list(suite.directory.parent.iterdir())) + node
            nodes.append(Running(suite.directory, number, arguments, variables, start))
        beta, alpha = nodes
        return alpha, beta

    def start_alone(
        self, suite: Suite, *args: str, env: Mapping[str, str | None] | None = None
    ) -> Running:
        """Start pytest on node 0, where an engine is to start the agents."""
        start = _Start(self, 0, torchrun=False, mounted=None, launched=False)
        number = len(list(suite.directory.parent.iterdir()))
        return Running(suite.directory, number, args, env or {}, start)

    def run_alone(
        self, suite: Suite, *args: str, env: Mapping[str, str | None] | None = None
    ) -> Finished:
        """The same, to its end."""
        return self.start_alone(suite, *args, env=env).finish(90 * _PATIENCE)

    def on(self, node: int, before: str = "") -> list[str]:
        """What to put before a command for it to run on a machine.

        Args:
            node: which.
            before: shell commands, each with ``&&`` behind it.
        """
        name = NAMES[node]
        there = ["ip", "netns", "exec", f"{self.mark}-{name}", "unshare", "-u", "-m"]
        return [*there, "sh", "-c", f'{before}hostname {name} && exec "$@"', "sh"]

    def environment(self, node: int) -> dict[str, str]:
        """Variables of processes of a machine."""
        tempdir = self.folder / NAMES[node]
        tempdir.mkdir(exist_ok=True)
        return {"TMPDIR": str(tempdir), MARK: self.mark}

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Have no packet come through in a block."""
        space = f"{self.mark}-{NAMES[1]}"
        _ip("-n", space, "link", "set", "veth0", "down")
        yield
        _ip("-n", space, "link", "set", "veth0", "up")

    def survivors(self) -> list[str]:
        """Command lines of processes of the cluster that still live."""
        return [command for _, command in self._processes()]

    def survivors_after(self, seconds: float) -> list[str]:
        """Those that have not ended by then."""
        deadline = time.monotonic() + seconds
        while (left := self.survivors()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def kill(self) -> None:
        for pid, _ in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _processes(self) -> Iterator[tuple[int, str]]:
        wanted = f"{MARK}={self.mark}".encode()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and wanted in (entry / "environ").read_bytes():
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    yield int(entry.name), command


@dataclass(frozen=True)
class Session:
    """What both nodes left."""

    alpha: Finished
    """pytest."""
    beta: Finished
    """The agent."""
    later: float
    """Seconds from pytest's end to the agent's."""

    @cached_property
    def text(self) -> str:
        return f"{self.alpha.tail()}\n=== node 1\n{self.beta.tail()}"


@dataclass(frozen=True)
class _Start:
    """Starts a Python program on one machine, as its launcher would."""

    cluster: Cluster
    node: int
    torchrun: bool
    mounted: Path | None
    launched: bool = True
    """Whether there is a launcher at all."""

    def __call__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
    ) -> subprocess.Popen[bytes]:
        mount = f"mount --bind {self.mounted} {cwd} && cd {cwd} && " if self.mounted else ""
        options: dict[str, Any] = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        there = self.cluster.on(self.node, mount)
        return subprocess.Popen(
            [*there, sys.executable, *self._launcher(), *arguments],
            cwd=cwd,
            env={**env, **self._variables(), **self.cluster.environment(self.node)},
            start_new_session=True,
            **options,
        )

    def _launcher(self) -> list[str]:
        if not self.torchrun:
            return []
        place = [f"--node-rank={self.node}", f"--master-addr={ADDRESSES[0]}"]
        size = ["--nnodes=2", "--nproc-per-node=1", f"--master-port={_PORT}"]
        return ["-m", "torch.distributed.run", *size, *place]

    def _variables(self) -> dict[str, str]:
        if self.torchrun or not self.launched:
            return {}
        place = {"RANK": str(self.node), "WORLD_SIZE": "2"}
        return place | {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": _PORT}


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
