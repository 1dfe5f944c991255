"""Which files of a rootdir a session needs: those that git keeps, or all but what tools make."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

from pytest_ddp.system.own import os, shutil, subprocess

_MADE = frozenset(
    {
        *("__pycache__", "node_modules", ".git", ".hg", ".svn", ".tox", ".nox"),
        *(".pytest_cache", ".mypy_cache", ".ruff_cache"),
    }
)
"""Folders that tools make, and which nobody would commit."""
_NOT_SEARCHED = ("*.egg", ".*", "_darcs", "build", "CVS", "dist", "venv", "{arch}")
"""Others in which pytest looks for no tests (``norecursedirs``, by default)."""
_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
"""What the folder of a virtual environment holds."""
_LINK = "160000"
"""The mode of a submodule in git's index."""


class ListError(Exception):
    """What is there cannot be told."""


def listed(rootdir: str) -> list[str]:
    """The files and links that belong to a rootdir, as paths below it.

    In a work tree of git: what is tracked, as it is there now, and what is neither tracked nor
    ignored; of submodules, too. Elsewhere, or where git ignores the rootdir as a whole: all files,
    but not those in folders that tools make.

    Raises:
        ListError: git or the file system refuses to tell.
    """
    return sorted({*_of_git(rootdir)} or {*_of_folder(rootdir)})


def _of_git(folder: str) -> Iterator[str]:
    """Nothing where this is no work tree, or there is no git."""
    if not _is_in_work_tree(folder) or shutil.which("git") is None:
        return
    for entry in _git(folder, "--stage"):
        about, _, path = entry.partition("\t")
        if about.startswith(_LINK):
            yield from _of_nested(folder, path)
        elif os.path.lexists(os.path.join(folder, path)):  # a deleted one is still tracked
            yield path
    made = _Made(folder)
    for path in _git(folder, "--others", "--exclude-standard"):
        if made.holds(path):
            continue
        if path.endswith("/"):
            yield from _of_nested(folder, path)
        else:
            yield path


def _of_nested(folder: str, path: str) -> Iterator[str]:
    """Of a work tree inside of another one; nothing if a submodule is not checked out."""
    nested = os.path.join(folder, path)
    if os.path.lexists(os.path.join(nested, ".git")):
        yield from (os.path.join(path, inner) for inner in _of_git(nested))


def _is_in_work_tree(folder: str) -> bool:
    while not os.path.lexists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return False
        folder = parent
    return True


def _git(folder: str, *which: str) -> list[str]:
    # A hook of git runs with variables that name its own repository. The folder may be another
    # user's, as in a container: pytest runs what is in it in any case.
    alone = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", *which]
    asked = subprocess.run(
        command,
        cwd=folder,
        env=alone | {"GIT_OPTIONAL_LOCKS": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    if asked.returncode:
        said = asked.stderr.decode(errors="replace").strip()
        raise ListError(f"`{' '.join(command)}` failed in {folder}: {said}")
    return [os.fsdecode(entry) for entry in asked.stdout.split(b"\0") if entry]


class _Made:
    """Knows what tools have made below a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: dict[str, bool] = {"": False}

    def holds(self, path: str) -> bool:
        """Whether a file is bytecode, or lies in a folder of theirs."""
        return path.endswith(".pyc") or self.is_folder(os.path.dirname(path.rstrip("/")))

    def is_folder(self, path: str) -> bool:
        """Whether a folder is one of theirs, or lies in one."""
        if (known := self._known.get(path)) is None:
            name = os.path.basename(path)
            known = self._known[path] = (
                name in _MADE
                or self.is_folder(os.path.dirname(path))
                or is_environment(os.path.join(self._folder, path))
            )
        return known


def is_environment(folder: str) -> bool:
    """Whether a folder is a virtual environment, or one of conda."""
    return any(os.path.exists(os.path.join(folder, name)) for name in _ENVIRONMENTS)


def _of_folder(rootdir: str) -> Iterator[str]:
    made = _Made(rootdir)

    def refuse(error: OSError) -> None:
        raise ListError(f"{error.filename} cannot be read: {error.strerror}")

    for folder, folders, files in os.walk(rootdir, onerror=refuse):
        inner = "" if folder == rootdir else os.path.relpath(folder, rootdir)
        kept = [name for name in folders if not _is_usual(name)]
        links = [name for name in kept if os.path.islink(os.path.join(folder, name))]
        for name in (*files, *links):
            if not name.endswith(".pyc"):
                yield os.path.join(inner, name)
        own = (name for name in kept if name not in links)
        folders[:] = [name for name in own if not made.is_folder(os.path.join(inner, name))]


def _is_usual(folder: str) -> bool:
    return any(fnmatch.fnmatch(folder, pattern) for pattern in _NOT_SEARCHED)
