"""Start a reference program as its users do, alone or under torchrun, and wait for its end.

Output goes to files: ranks of torchrun lead sessions of their own, and one that outlives its
launcher would hold a pipe open and keep the reader waiting.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import psutil
import pytest

from tests.warm import interpreter

REPOSITORY = Path(__file__).parents[2]
LIMIT = 600.0
"""Seconds for a program to start its ranks, train and end; it needs about 10 on two idle cores."""
_GRACE = 5.0
"""Seconds for a launcher that is to stop, to stop its ranks and clean up."""
_TAIL = 8000
_LAUNCHERS = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)$|MASTER_(ADDR|PORT)$|TORCHELASTIC_|PL_|NODE_RANK$"
)
"""Variables by which a program would take itself for a rank of the tests' own launcher."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that has ended by itself."""

    returncode: int
    stdout: str
    """The output of all ranks, as is ``stderr``."""
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def launch(
    *arguments: str | Path,
    ranks: int | None = None,
    cwd: Path = REPOSITORY,
    env: Mapping[str, str] | None = None,
    limit: float = LIMIT,
) -> Finished:
    """Run ``python ARGUMENTS`` to its end, on ``ranks`` ranks of torchrun where they are given.

    Raises:
        pytest.fail.Exception: it ran longer than ``limit`` seconds; its processes are gone,
            and the text has what they had printed.
    """
    elastic = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [*(elastic if ranks else []), *map(str, arguments)]
    # Of torchrun itself nothing is asked but ranks, which are fresh: it may have torch already.
    start = interpreter.start if ranks else interpreter.start_fresh
    with TemporaryFile() as stdout, TemporaryFile() as stderr, open(os.devnull) as nothing:
        process = start(
            command,
            cwd=cwd,
            env=_environment(env or {}),
            stdin=nothing.fileno(),
            stdout=stdout.fileno(),
            stderr=stderr.fileno(),
        )
        try:
            returncode = process.wait(limit)
        except subprocess.TimeoutExpired:
            stop(process)
            pytest.fail(_too_late(command, limit, _text(stdout), _text(stderr)))
        except BaseException:  # an interrupt of the tests must leave nothing behind either
            stop(process)
            raise
        return Finished(returncode, _text(stdout), _text(stderr))


def stop(launcher: interpreter.Process | subprocess.Popen[bytes]) -> None:
    """End a launcher and all that it started, in bounded time.

    The process groups are recorded first: ranks whose launcher is gone are no longer its
    descendants, and their DataLoader workers are in the ranks' groups.
    """
    family = [psutil.Process(launcher.pid)]
    family += family[0].children(recursive=True)
    groups = {member: group for member in family if (group := _group(member)) is not None}
    launcher.terminate()
    try:
        launcher.wait(_GRACE)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.wait()
    for member, group in groups.items():
        # The number of a group none of whose members is left may be somebody else's by now.
        if member.is_running():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
    psutil.wait_procs(family, timeout=_GRACE)


def _group(process: psutil.Process) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(process.pid)
    return None


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not _LAUNCHERS.match(name)}
    return kept | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **changes}


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _too_late(command: Sequence[str], limit: float, stdout: str, stderr: str) -> str:
    return (
        f"python {' '.join(command)}\nran longer than {limit:.0f} s and was stopped\n"
        f"stdout ends with:\n{stdout[-_TAIL:]}\nstderr ends with:\n{stderr[-_TAIL:]}"
    )
