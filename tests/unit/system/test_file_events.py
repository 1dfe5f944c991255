"""Which files audit events are about, and looks at files, by what Python really does."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_ddp.system.file_events import (
    Given,
    files_of,
    follow_looks,
    full_path,
    opens_to_write,
)

_seen: list[tuple[str, tuple[Any, ...]]] = []
_is_hooked = _is_noting = False


@pytest.fixture
def seen() -> Iterator[list[tuple[str, tuple[Any, ...]]]]:
    """The events of this test. The hook cannot be removed: after the test it notes nothing, as
    arguments of later events, such as frames, would be kept alive."""
    global _is_hooked, _is_noting
    if not _is_hooked:
        sys.addaudithook(lambda *event: _seen.append(event) if _is_noting else None)
        _is_hooked = True
    _is_noting = True
    yield _seen
    _is_noting = False
    _seen.clear()


def found(seen: list[tuple[str, tuple[Any, ...]]], event: str) -> list[list[Given]]:
    return [files_of(name, arguments) for name, arguments in seen if name == event]


CALLS: list[tuple[str, Callable[[Path], object], list[str]]] = [
    ("open", lambda f: open(f / "a").close(), ["a"]),
    ("open", lambda f: os.close(os.open(f / "a", os.O_RDWR)), ["a"]),
    ("os.remove", lambda f: os.remove(f / "a"), ["a"]),
    ("os.remove", lambda f: (f / "a").unlink(), ["a"]),
    ("os.rmdir", lambda f: os.rmdir(f / "empty"), ["empty"]),
    ("shutil.rmtree", lambda f: shutil.rmtree(f / "empty"), ["empty"]),
    ("os.truncate", lambda f: os.truncate(f / "a", 0), ["a"]),
    ("os.rename", lambda f: os.rename(f / "a", f / "b"), ["a", "b"]),
    ("os.rename", lambda f: os.replace(f / "a", f / "b"), ["a", "b"]),
    ("os.link", lambda f: os.link(f / "a", f / "b"), ["b"]),
    ("os.symlink", lambda f: os.symlink(f / "a", f / "b"), ["b"]),
    ("os.mkdir", lambda f: os.mkdir(f / "new"), ["new"]),
    ("os.utime", lambda f: (f / "a").touch(), ["a"]),
    ("os.listdir", lambda f: os.listdir(f / "empty"), ["empty"]),
    ("os.scandir", lambda f: list(os.scandir(f / "empty")), ["empty"]),
]


@pytest.mark.parametrize(("event", "call", "names"), CALLS)
def test_the_files_of_a_call(
    seen: list[Any], event: str, call: Callable[[Path], object], names: list[str], tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "empty").mkdir()
    seen.clear()
    call(tmp_path)
    given = found(seen, event)[0]
    assert [full_path(*one) for one in given] == [str(tmp_path / name) for name in names]


def test_paths_are_relative_to_the_folder_of_a_descriptor(
    seen: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    folder = os.open(tmp_path / "below", os.O_RDONLY)
    try:
        seen.clear()
        os.mkdir("new", dir_fd=folder)
        os.symlink("new", "link", dir_fd=folder)
        os.rename("link", "moved", src_dir_fd=folder, dst_dir_fd=folder)
        os.remove("moved", dir_fd=folder)
        names = [
            [full_path(*one) for one in given]
            for event in ("os.mkdir", "os.symlink", "os.rename", "os.remove")
            for given in found(seen, event)
        ]
        assert full_path(folder) == str(tmp_path / "below")
    finally:
        os.close(folder)
    made, link, moved = (str(tmp_path / "below" / name) for name in ("new", "link", "moved"))
    assert names == [[made], [link], [link, moved], [moved]]
    monkeypatch.chdir(tmp_path)
    seen.clear()
    os.listdir()
    (((given, _),),) = found(seen, "os.listdir")
    assert full_path(given) == str(tmp_path)
    assert full_path("./below//../a") == str(tmp_path / "a")
    assert full_path(f"{tmp_path}/below/") == str(tmp_path / "below")
    assert full_path(object()) is None


def test_locks_have_the_descriptor(seen: list[Any], tmp_path: Path) -> None:
    with open(tmp_path / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ((given,),) = found(seen, "fcntl.flock")
        assert full_path(*given) == str(tmp_path / "lock")


def test_which_events_open_to_write(seen: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "a"
    for mode, writes in (("w", True), ("r", False), ("a", True), ("r+b", True), ("x", True)):
        if mode == "x":
            path.unlink()
        seen.clear()
        open(path, mode).close()
        (arguments,) = (arguments for event, arguments in seen if event == "open")
        assert opens_to_write(*arguments[1:]) == writes, mode
    assert opens_to_write("w", None)
    assert not opens_to_write("rb", None)


def test_other_events_have_no_files() -> None:
    assert files_of("socket.bind", (1, 2)) == []


def test_looks_are_seen_of_until_it_ends(tmp_path: Path) -> None:
    looks: list[tuple[Any, int | None, str]] = []
    original, able = os.stat, set(os.supports_fd)
    end = follow_looks(lambda *look: looks.append(look))
    try:
        assert os.stat in os.supports_follow_symlinks
        assert not (tmp_path / "a").exists()
        assert not os.path.islink(tmp_path / "a")
        assert os.access(tmp_path, os.R_OK)
        shutil.copytree(tmp_path, tmp_path / "copy")
    finally:
        end()
    assert (tmp_path / "a", "islink") in [(path, caller) for path, _, caller in looks]
    assert (str(tmp_path / "a"), "exists") in [(str(path), caller) for path, _, caller in looks]
    assert os.stat is original
    assert set(os.supports_fd) == able
    number = len(looks)
    (tmp_path / "a").exists()
    assert len(looks) == number
