"""``python -m`` in a process of its own that finds pytest and torch imported.

Hundreds of tests look at a real pytest session from outside. A fresh interpreter imports torch
for each, and once more in the host of pytest-ddp: five CPU seconds, most of what the tests took.
A fork of a process that has done so begins in milliseconds, with arguments, directory,
environment, descriptors and session of its own, and may do as it likes.

What differs: torch and pytest's plugins are in ``sys.modules`` from the beginning, a session has
children that wait to become its host or its xdist workers, and no object is destroyed at the end.
Tests to which one of these matters ask for a fresh interpreter; with ``DDP_TESTS_FRESH`` in the
environment all get one.
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.warm.machine import Machine
from tests.warm.placing import ROOM
from tests.warm.server import heirs_of, receive, send

_ROOT = Path(__file__).parents[2]
_SERVER = "import sys; sys.path[0] = sys.argv[2]; from tests.warm.server import main; main()"
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Threads of a computation would not survive a fork; pytest-ddp's host is started so, too."""
_SET_BY_TORCH = "INDUCTOR_CACHE_DIR$"
"""A variable that torch sets where its compiler is imported, and so in an outer run at some time;
read when the compiler is used."""
_SET_BY_LAUNCHERS = "ELASTIC_"
"""Variables for each rank, as torchrun does; read when the rank makes its process group."""
_READ_AT_START = re.compile(
    rf"PYTHON(?!(PATH|UNBUFFERED)$)|TORCH(?!{_SET_BY_TORCH}|{_SET_BY_LAUNCHERS})"
    r"|LD_|LC_|LANG|KMP_|(OMP|OPENBLAS|MKL)_(?!NUM)"
)


class Process:
    """A program on its way: so much of ``subprocess.Popen`` as tests use."""

    def __init__(self, server: _Server, pid: int) -> None:
        self._server = server
        self._watch = os.pidfd_open(pid)
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, as soon as there is one.

        Raises:
            subprocess.TimeoutExpired: it runs on.
        """
        code = self._wait(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._watch, select.POLLIN)
            if poll.poll(None if timeout is None else timeout * 1000):
                # Until then it is a zombie, and its number nobody else's.
                self.returncode = self._server.ask({"reap": self.pid})
                os.close(self._watch)
        return self.returncode


class _Server:
    def __init__(self) -> None:
        own = {name: value for name, value in os.environ.items() if _is_plain(name)}
        self._environment = own | _ONE_THREAD
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVER, str(theirs.fileno()), str(_ROOT), ROOM],
                env=self._environment | {"DDP_TESTS_ROOM": ROOM},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            theirs.close()
            if receive(self._channel) is None:
                log.seek(0)
                raise RuntimeError(f"the warm interpreter did not start:\n{log.read().decode()}")

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether an interpreter with this environment would have started as the server did."""
        ours, theirs = (
            {name: value for name, value in each.items() if _READ_AT_START.match(name)}
            for each in (self._environment, environment)
        )
        return ours == theirs

    def close(self) -> None:
        self._channel.close()
        self._process.wait()

    def ask(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> Any:
        with self._lock:
            send(self._channel, message, descriptors)
            answer = receive(self._channel)
        assert answer is not None, "the warm interpreter has died"
        return answer[0]


class Start(Protocol):
    """Starts ``python`` with these arguments, leader of a session of its own."""

    def __call__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
    ) -> Process | subprocess.Popen[bytes]: ...


@functools.cache
def _server() -> _Server:
    server = _Server()
    atexit.register(server.close)
    return server


def start(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: int,
    stdout: int,
    stderr: int,
    spawns: int = 0,
    machine: Machine | None = None,
) -> Process | subprocess.Popen[bytes]:
    """Start ``python -m`` or ``-c`` with these arguments, leader of a session of its own.

    The interpreter is fresh where the environment has what one reads when it starts. The first
    ``spawns`` processes that the program starts by multiprocessing's ``spawn`` are warm as well.
    Without a ``machine`` the program is on this one.
    """
    if not is_warm(env):
        standard = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        return start_fresh(arguments, cwd=cwd, env=env, **standard, machine=machine)
    return _start(arguments, cwd, env, [stdin, stdout, stderr], spawns=spawns, machine=machine)


def is_warm(env: Mapping[str, str]) -> bool:
    """Whether a program with this environment finds what the warm interpreter has imported."""
    return "DDP_TESTS_FRESH" not in os.environ and _server().serves(env)


def start_beside(
    pid: int,
    arguments: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    descriptors: Sequence[int],
) -> Process:
    """Start a warm program where a process is: on its machine, with its mounts."""
    return _start(arguments, Path(cwd), env, descriptors, beside=pid)


def _start(
    arguments: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    descriptors: Sequence[int],
    *,
    spawns: int = 0,
    machine: Machine | None = None,
    beside: int | None = None,
) -> Process:
    server = _server()
    os.umask(umask := os.umask(0))
    program = {
        "argv": list(arguments),
        "cwd": (machine and machine.cwd) or str(cwd),
        "env": dict(env),
        "umask": umask,
        "numbers": [0, 1, 2],
        "heirs": heirs_of(arguments),
        "spawns": spawns,
        "network": None if machine is None else machine.network,
        "commands": "" if machine is None else machine.commands,
        "beside": beside,
    }
    return Process(server, server.ask(program, descriptors))


def start_fresh(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: int,
    stdout: int,
    stderr: int,
    machine: Machine | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in an interpreter that has imported nothing."""
    return subprocess.Popen(
        [*(() if machine is None else machine.prefix()), sys.executable, *arguments],
        cwd=cwd,
        env=env,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def run(
    arguments: Sequence[str],
    *,
    timeout: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    merged: bool = False,
    machine: Machine | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``python`` with these arguments to its end.

    Args:
        timeout: seconds.
        cwd: our own unless given, as is ``env``.
        env: see ``cwd``.
        merged: have standard error in ``stdout``, where it was written.
        machine: this one unless given.

    Raises:
        subprocess.TimeoutExpired: it ran longer; its process group has been killed.
    """
    with (
        open(os.devnull) as nothing,
        tempfile.TemporaryFile("w+", errors="replace") as stdout,
        tempfile.TemporaryFile("w+", errors="replace") as stderr,
    ):
        process = start(
            arguments,
            cwd=cwd or Path.cwd(),
            env=os.environ if env is None else env,
            stdin=nothing.fileno(),
            stdout=stdout.fileno(),
            stderr=(stdout if merged else stderr).fileno(),
            machine=machine,
        )
        try:
            code = process.wait(timeout)
        except BaseException:  # also an interrupt must leave nothing behind
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        for stream in (stdout, stderr):
            stream.seek(0)
        return subprocess.CompletedProcess(arguments, code, stdout.read(), stderr.read())


def _is_plain(name: str) -> bool:
    """Whether a variable is none of the outer run's own."""
    # Hypothesis looks for signs of CI while it is imported.
    signs = "(CI|BUILD_NUMBER|GITHUB_ACTIONS|GITLAB_CI)$"
    return not re.match(rf"PYTEST|PYTHONPATH$|DDP_|COV|{signs}", name)
