"""Builds what is released from the files that git knows, so that nothing else slips in.

``python -m tests.release.building FOLDER`` copies them, for the release itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
_SDIST = "import sys\nfrom setuptools import build_meta\nprint(build_meta.build_sdist(sys.argv[1]))"


def run(*command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command without what the outer run or a user put into the environment."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return subprocess.run(
        command,
        cwd=cwd,
        env=kept | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def checked(*command: str, cwd: Path, **env: str) -> str:
    """Run a command that must succeed, without our environment; returns what it printed."""
    done = run(*command, cwd=cwd, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tracked() -> list[str]:
    """Files that git knows and that are there."""
    listed = checked("git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", cwd=ROOT)
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def copy(folder: Path) -> Path:
    """The tracked files in a folder of their own."""
    for name in tracked():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    return folder


def build_wheel(source: Path, folder: Path) -> Path:
    """Build without isolation, which would take the build requirements from the package index."""
    options = ("--no-deps", "--no-build-isolation", "--no-index")
    checked(*PIP, "wheel", *options, f"--wheel-dir={folder}", str(source), cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def build_sdist(source: Path, folder: Path) -> Path:
    """Build as ``python -m build --sdist --no-isolation`` does."""
    checked(sys.executable, "-c", _SDIST, str(folder), cwd=source)
    (built,) = folder.glob("*.tar.gz")
    return built


if __name__ == "__main__":
    copy(Path(sys.argv[1]))
