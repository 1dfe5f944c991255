"""Which files of a rootdir a session needs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pytest_ddp.machines import listing
from pytest_ddp.machines.listing import listed


def write(root: Path, *names: str) -> None:
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)


def git(folder: Path, *arguments: str) -> None:
    own = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *own, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def work_tree(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    write(root, "tests/test_a.py", "src/pkg/__init__.py", "gone.py", "build/wanted.txt")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "all")
    return root


def test_what_is_tracked_and_what_is_new_but_not_what_is_ignored(work_tree: Path) -> None:
    (work_tree / "gone.py").unlink()
    write(work_tree, ".gitignore", "tests/test_new.py", "out.log", "a name\nof two lines.txt")
    (work_tree / ".gitignore").write_text("*.log\n")
    assert listed(str(work_tree)) == [
        ".gitignore",
        "a name\nof two lines.txt",
        "build/wanted.txt",
        "src/pkg/__init__.py",
        "tests/test_a.py",
        "tests/test_new.py",
    ]


def test_what_tools_make_is_left_out_where_nobody_has_said_so(work_tree: Path) -> None:
    before = listed(str(work_tree))
    write(work_tree, "tests/__pycache__/test_a.pyc", "old.pyc", "env/pyvenv.cfg", "env/lib/x.py")
    write(work_tree, ".pytest_cache/v/x", "web/node_modules/x/y.js")
    assert listed(str(work_tree)) == before


def test_a_folder_below_the_top_of_the_work_tree(work_tree: Path) -> None:
    write(work_tree, "tests/new.txt")
    assert listed(str(work_tree / "tests")) == ["new.txt", "test_a.py"]


def test_submodules_and_repositories_inside(work_tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write(other, "lib.py")
    git(other, "init", "-q")
    git(other, "add", ".")
    git(other, "commit", "-qm", "all")
    git(work_tree, "submodule", "add", "-q", str(other), "third/party")
    write(work_tree, "third/party/edited.py")
    git(tmp_path, "clone", "-q", str(other), str(work_tree / "nested"))
    found = listed(str(work_tree))
    assert {"third/party/lib.py", "third/party/edited.py", "nested/lib.py"} <= {*found}
    assert not [path for path in found if ".git/" in path or path.endswith("/.git")]


def test_a_submodule_that_is_not_checked_out_is_empty(work_tree: Path, tmp_path: Path) -> None:
    test_submodules_and_repositories_inside(work_tree, tmp_path)
    git(work_tree, "submodule", "deinit", "-q", "-f", "third/party")
    assert not [path for path in listed(str(work_tree)) if path.startswith("third/")]


def test_variables_of_a_hook_of_another_repository_change_nothing(
    work_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = listed(str(work_tree))
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    assert listed(str(work_tree)) == before


def test_a_work_tree_of_another_user(work_tree: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("takes root")
    before = listed(str(work_tree))
    for path in (work_tree, work_tree / ".git"):
        os.chown(path, 12345, 12345)
    assert listed(str(work_tree)) == before


PLAIN = ("tests/test_a.py", ".coveragerc", "src/pkg/data.bin")


def _without(root: Path) -> None:
    write(root, *PLAIN)
    write(root, "build/x", "dist/x", ".tox/x", "venv/x", "my/env/pyvenv.cfg", "my/env/x.py")
    write(root, "a/__pycache__/b.pyc", "c.pyc", "pkg.egg/x", "node_modules/x")


def test_without_git_all_but_what_tools_make(tmp_path: Path) -> None:
    _without(tmp_path)
    (tmp_path / "link").symlink_to("tests")
    assert listed(str(tmp_path)) == sorted([*PLAIN, "link"])


def test_the_same_where_git_is_not_installed(
    work_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert listed(str(work_tree)) == [
        *("gone.py", "src/pkg/__init__.py", "tests/test_a.py"),
    ]


def test_the_same_where_git_ignores_the_rootdir_itself(work_tree: Path) -> None:
    """As in a home directory that is a work tree for dotfiles."""
    (work_tree / ".gitignore").write_text("scratch\n")
    _without(work_tree / "scratch")
    assert listed(str(work_tree / "scratch")) == sorted(PLAIN)


def test_a_git_that_fails_is_an_error_with_its_words(work_tree: Path) -> None:
    (work_tree / ".git" / "index").write_bytes(b"no index")
    with pytest.raises(listing.ListError, match=r"ls-files.* failed in .*index"):
        listed(str(work_tree))
