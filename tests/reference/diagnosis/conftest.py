"""Ranks that find torch imported, for reports of what they do after that."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest
from ddp_reference.diagnosis import launch

from tests.warm import interpreter


@pytest.fixture
def warm_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of this process are forks; those that the tests of commands start are fresh."""
    known = {"DEVNULL": subprocess.DEVNULL, "TimeoutExpired": subprocess.TimeoutExpired}
    monkeypatch.setattr(launch, "subprocess", SimpleNamespace(Popen=_start, **known))


def _start(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None,
    stdin: int,
    stdout: IO[bytes],
    stderr: IO[bytes],
    start_new_session: bool,
) -> interpreter.Process | subprocess.Popen[bytes]:
    assert (stdin, start_new_session) == (subprocess.DEVNULL, True)
    with open(os.devnull) as nothing:
        return interpreter.start(
            command[1:],
            cwd=cwd or Path.cwd(),
            env=env,
            stdin=nothing.fileno(),
            stdout=stdout.fileno(),
            stderr=stderr.fileno(),
        )
