"""A session's folder: found by nobody who does not hold it, swept once nobody does."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pytest_ddp.system.tempfiles import SessionFolder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_new_and_closed_to_others(temporary: Path) -> None:
    old = os.umask(0)
    try:
        first, second = SessionFolder(), SessionFolder()
    finally:
        os.umask(old)
    assert {first.path, second.path} == {str(path) for path in temporary.iterdir()}
    assert stat.S_IMODE(os.stat(first.path).st_mode) == 0o700
    first.close()
    second.close()
    assert not list(temporary.iterdir())


def test_it_is_swept_when_its_holders_are_dead(temporary: Path) -> None:
    code = f"import tempfile; tempfile.tempdir = {str(temporary)!r}\n"
    code += "from pytest_ddp.system.tempfiles import SessionFolder\n"
    code += "folder = SessionFolder(); print(folder.path)\n"
    code += "open(folder.path + '/it', 'w').close()\n"
    code += "import os; os.set_inheritable(folder.lock, True)\n"
    code += "os.spawnv(os.P_NOWAIT, '/bin/cat', ['cat']); os.kill(os.getpid(), 9)\n"
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    dead = Path(holder.stdout.readline().decode().strip())
    holder.wait(30)
    with_a_holder = SessionFolder()
    assert dead.exists(), "its holder's child has the lock still"
    look = os.open(dead, os.O_RDONLY)
    holder.stdin.close()
    fcntl.flock(look, fcntl.LOCK_EX)  # until cat has ended
    os.close(look)
    without = SessionFolder()
    assert not dead.exists()
    assert Path(with_a_holder.path).exists()
    with_a_holder.close()
    without.close()
    holder.stdout.close()


def test_without_a_temporary_directory_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    folder = SessionFolder()
    assert (folder.path, folder.held) == ("", ())
    folder.close()
