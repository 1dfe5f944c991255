"""Source distributions, fetched once into a folder that git ignores."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from fidelity.suites import Suite

CACHE = Path(__file__).parents[1] / "build" / "fidelity"


def source_of(suite: Suite) -> Path:
    """The unpacked source distribution, from the package index if it is not there.

    Raises:
        RuntimeError: pip cannot fetch it; its output is the message.
    """
    folder = CACHE / f"{suite.package}-{suite.version}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        # Beside its place and then moved there: an interrupted run leaves no half of a suite.
        with tempfile.TemporaryDirectory(dir=CACHE) as directory:
            (unpacked,) = _unpack(_fetch(suite, Path(directory)), Path(directory, "unpacked"))
            unpacked.rename(folder)
    return folder


def _fetch(suite: Suite, directory: Path) -> Path:
    options = ("--quiet", "--no-binary", ":all:", "--no-deps", "--dest", str(directory))
    finished = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, f"{suite.package}=={suite.version}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode != 0:
        raise RuntimeError(f"pip download {suite.package}:\n{finished.stdout}{finished.stderr}")
    (archive,) = directory.glob("*.tar.gz")
    return archive


def _unpack(archive: Path, folder: Path) -> list[Path]:
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return list(folder.iterdir())
