"""The wheel holds all that users need: built, installed and used away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("pytest_ddp", "ddp_conformance", "ddp_reference")
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
WHERE = """
import importlib
for name in {names}:
    print(importlib.import_module(name).__path__[0])
"""


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
    done = run(*command, cwd=cwd, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tracked() -> list[str]:
    """Files that git knows and that are there."""
    listed = checked("git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", cwd=ROOT)
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the tracked files, so that nothing of a working tree slips in."""
    directory = tmp_path_factory.mktemp("wheel")
    for name in tracked():
        copy = directory / "source" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
    build = (
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir=.",
        "./source",
    )
    checked(*pip, *build, cwd=directory)
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    """An interpreter that has the wheel and our dependencies, but no editable install.

    A path in a .pth file is searched, but its own .pth files (and so the import hook
    of an editable install) are not read.
    """
    directory = wheel.parent / "environment"
    checked(sys.executable, "-m", "venv", "--without-pip", str(directory), cwd=wheel.parent)
    interpreter = directory / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
    install = ("--python", str(interpreter), "install", "--no-deps", "--no-index", str(wheel))
    checked(*pip, *install, cwd=wheel.parent)
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
    told = checked(str(python), "-c", WHERE.format(names=[package]), cwd=python.parents[3])
    assert Path(told.strip()).is_relative_to(python.parents[1])


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


def test_wheel_holds_the_packages_and_no_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
    assert "ddp_conformance/SPEC.md" in names, "--explain reads it"


def test_wheel_holds_every_module(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.endswith(".py")}
    folders = ("", "conformance/", "reference/")
    modules = {
        name.removeprefix(folder)
        for folder, package in zip(folders, PACKAGES, strict=True)
        for name in tracked()
        if name.startswith(f"{folder}{package}/") and name.endswith(".py")
    }
    assert modules == packed
