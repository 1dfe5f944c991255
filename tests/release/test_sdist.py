"""The sdist holds the repository, and a wheel that is built from it is the same one."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.release.building import build_sdist, build_wheel, copy, tracked

LEFT_OUT = {".gitignore"}
MADE = {"PKG-INFO", "setup.cfg"}
"""What setuptools writes into each sdist."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy(tmp_path_factory.mktemp("sdist") / "source")


@pytest.fixture(scope="module")
def unpacked(source: Path) -> Path:
    sdist = build_sdist(source, source.parent)
    with tarfile.open(sdist) as archive:
        archive.extractall(source.parent, filter="data")
    return source.parent / sdist.name.removesuffix(".tar.gz")


def test_sdist_holds_what_git_knows(unpacked: Path) -> None:
    files = {file.relative_to(unpacked) for file in unpacked.rglob("*") if file.is_file()}
    names = {str(file) for file in files if ".egg-info" not in file.parts[0]}
    assert names - MADE == set(tracked()) - LEFT_OUT


def test_wheels_of_sdist_and_repository_are_the_same(source: Path, unpacked: Path) -> None:
    contents = []
    for folder in (source, unpacked):
        target = source.parent / f"wheel-of-{folder.name}"
        target.mkdir()
        with zipfile.ZipFile(build_wheel(folder, target)) as archive:
            contents.append({name: archive.read(name) for name in archive.namelist()})
    assert contents[0] == contents[1]
