"""The wheel holds all that users need: built, installed and used away from the checkout."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import textwrap
import zipfile
from pathlib import Path

import pytest

from tests.release.building import PIP, ROOT, build_wheel, checked, copy, run, tracked

LIST = Path(__file__).with_name("wheel.txt")
PACKAGES = ("pytest_ddp", "ddp_conformance")
TEST = """
    from pathlib import Path

    import pytest
    import pytest_ddp
    import torch
    import torch.distributed as dist
    from pytest_ddp import Ddp

    @pytest.mark.ddp(world_size=2)
    def test_all_reduce(ddp: Ddp):
        total = torch.full((3,), float(ddp.rank + 1))
        dist.all_reduce(total)
        assert ddp.gather(total.tolist()) == [[3.0] * 3] * 2

    @pytest.mark.ddp(world_size=2)
    def test_fails(ddp: Ddp):
        assert ddp.rank == 0

    @pytest.mark.ddp(world_size=2)
    def test_where(ddp: Ddp):
        raise AssertionError(f"installed: {Path(pytest_ddp.__file__).parent}")
"""
DESCRIPTION = """
from importlib.metadata import metadata
print(metadata("pytest-ddp").get_payload())
"""
EXPLAINED = """
from ddp_conformance.framework.registry import known_ids
from ddp_conformance.frontend.explain import explanation
for guarantee in known_ids():
    print(*explanation(guarantee), sep="\\n")
"""
WHERE = """
import importlib
for name in {names}:
    print(importlib.import_module(name).__path__[0])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the tracked files, so that nothing of a working tree slips in."""
    directory = tmp_path_factory.mktemp("wheel")
    return build_wheel(copy(directory / "source"), directory)


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    """An interpreter that has the wheel and our dependencies, but no editable install.

    A path in a .pth file is searched, but its own .pth files (and so the import hook
    of an editable install) are not read.
    """
    directory = wheel.parent / "environment"
    checked(sys.executable, "-m", "venv", "--without-pip", str(directory), cwd=wheel.parent)
    interpreter = directory / "bin" / "python"
    install = ("--python", str(interpreter), "install", "--no-deps", "--no-index", str(wheel))
    checked(*PIP, *install, cwd=wheel.parent)
    (packages,) = directory.glob("lib/python*/site-packages")
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("\n".join(sorted(paths)) + "\n")
    return interpreter


@pytest.fixture(scope="module")
def session(python: Path) -> subprocess.CompletedProcess[str]:
    """A user's project far from the checkout."""
    project = python.parents[3] / "project"
    project.mkdir()
    (project / "pytest.ini").write_text("[pytest]\nfilterwarnings = default\n")
    (project / "test_user.py").write_text(textwrap.dedent(TEST))
    return run(str(python), "-m", "pytest", "-v", cwd=project)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_imported_from_the_wheel(python: Path, package: str) -> None:
    shown = checked(str(python), "-c", WHERE.format(names=[package]), cwd=python.parents[3])
    assert Path(shown.strip()).is_relative_to(python.parents[1])


def test_a_ddp_test_passes(session: subprocess.CompletedProcess[str]) -> None:
    assert "test_user.py::test_all_reduce PASSED" in session.stdout, session.stdout + session.stderr
    assert "2 failed, 1 passed" in session.stdout


def test_a_ddp_test_fails_with_introspection(session: subprocess.CompletedProcess[str]) -> None:
    assert "test_user.py::test_fails FAILED" in session.stdout
    assert "assert 1 == 0" in session.stdout
    assert session.returncode == pytest.ExitCode.TESTS_FAILED


def test_ranks_use_the_installed_package(
    python: Path, session: subprocess.CompletedProcess[str]
) -> None:
    assert f"installed: {python.parents[1]}/" in session.stdout
    assert f"installed: {ROOT}" not in session.stdout


@pytest.mark.exhaustive  # what the wheel holds decides, and another test looks at that
def test_guarantees_are_explained_as_in_the_checkout(python: Path) -> None:
    """The examples of ``--explain`` are mutants, and are cut from their files."""
    installed = checked(str(python), "-c", EXPLAINED, cwd=python.parents[3])
    assert installed.count("# Breaks it: ") > 60
    assert installed == checked(sys.executable, "-c", EXPLAINED, cwd=ROOT)


def test_wheel_holds_every_module(wheel: Path) -> None:
    folders = ("", "conformance/")
    modules = {
        name.removeprefix(folder)
        for folder, package in zip(folders, PACKAGES, strict=True)
        for name in tracked()
        if name.startswith(f"{folder}{package}/") and name.endswith(".py")
    }
    assert modules == {name for name in _names(wheel) if name.endswith(".py")}


def test_wheel_holds_what_is_listed_and_no_more(wheel: Path) -> None:
    """The list has each folder of modules and each other file; the modules are those of git."""
    names = _names(wheel)
    folders = {f"{name.rpartition('/')[0]}/" for name in names if name.endswith(".py")}
    others = {name for name in names if not name.endswith(".py")}
    assert sorted(folders | others) == LIST.read_text(encoding="utf-8").splitlines()


def test_long_description_has_no_relative_link(python: Path) -> None:
    metadata = (
        "from importlib.metadata import metadata\nprint(metadata('pytest-ddp').get_payload())"
    )
    text = checked(str(python), "-c", metadata, cwd=python.parents[3])
    assert text.startswith("# pytest-ddp")
    assert "GPUs and backends" in text
    assert not re.findall(r"\]\((?!https://)[^)]*\)", text)


def _names(wheel: Path) -> set[str]:
    """Files of the wheel, with the version left out of its own folder."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    return {re.sub(r"^pytest_ddp-[^/]+(?=\.dist-info/)", "pytest_ddp", name) for name in names}
