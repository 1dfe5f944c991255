"""Off Linux one line has the reason, ddp tests fail or are skipped, and all other tests run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

DONE = []


@pytest.fixture(scope="module")
def wide():
    yield
    DONE.append("wide")


@pytest.mark.ddp(world_size=2)
def test_on_ranks(ddp):
    pass


def test_plain(wide):
    pass


@pytest.mark.parametrize("number", range(2))
@pytest.mark.ddp(world_size=[1, 2])
def test_several(ddp, number):
    pass
"""
PLAIN = "def test_plain():\n    pass\n"
START = """
import os, sys, sysconfig

sysconfig.get_config_vars()  # which asks for the platform, once
{change}
import pytest

sys.exit(pytest.main([*"-p pytest_ddp.plugin -p no:cacheprovider -rA".split(), *sys.argv[1:]]))
"""
DARWIN = "sys.platform = 'darwin'\ndel os.memfd_create, os.pidfd_open"
WINDOWS = """
sys.modules |= dict.fromkeys(("fcntl", "resource", "termios", "pwd", "grp"))
del os.memfd_create, os.pidfd_open, os.setsid, os.fork, os.register_at_fork
"""
"""The platform stays, by which the standard library picks other parts of itself."""
OLD = "del os.pidfd_open"


def _run(folder: Path, change: str, *args: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    return subprocess.run(
        [sys.executable, "-c", START.format(change=change), *args],
        cwd=folder,
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "160"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (DARWIN, "darwin without memfd_create"),
        (OLD, "linux without pidfd_open"),
        (WINDOWS, "linux without memfd_create"),
    ],
    ids=["darwin", "old", "windows"],
)
def test_one_line_has_the_reason_and_plain_tests_run(
    tmp_path: Path, change: str, named: str
) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = _run(tmp_path, change)
    why = f"ranks need Linux 5.3 or newer, this is {named}"
    lines = done.stdout.splitlines()
    shown = f"ddp: {why}: ddp tests fail, --ddp-unsupported=skip skips them"
    assert lines.count(shown) == 1, done.stdout + done.stderr
    assert "PASSED test_it.py::test_plain" in lines
    assert f"ERROR test_it.py::test_on_ranks - {why}" in lines
    assert " 1 passed, 5 errors in " in lines[-1]
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == 1


def test_an_option_skips_ddp_tests(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = _run(tmp_path, DARWIN, "--ddp-unsupported=skip")
    why = "ranks need Linux 5.3 or newer, this is darwin without memfd_create"
    lines = done.stdout.splitlines()
    assert lines.count(f"ddp: {why}: ddp tests are skipped (--ddp-unsupported=skip)") == 1
    assert " 1 passed, 5 skipped in " in lines[-1]
    assert [line for line in lines if line.startswith("SKIPPED [") and line.endswith(f": {why}")]
    assert done.returncode == 0, done.stdout + done.stderr


def test_where_ranks_run_the_option_skips_none(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(f"import pytest\n\n@pytest.mark.ddp\n{PLAIN}")
    done = _run(tmp_path, "", "--ddp-unsupported=skip")
    assert " 1 passed in " in done.stdout.splitlines()[-1], done.stdout + done.stderr


def test_plain_tests_alone_get_no_warning(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = _run(tmp_path, DARWIN, "-m", "not ddp")
    assert "Linux" not in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr


def test_tests_that_the_session_puts_on_ranks_do_not_pass_without(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PLAIN)
    done = _run(tmp_path, OLD, "--ddp-everywhere=2")
    assert "ERROR test_it.py::test_plain - ranks need Linux" in done.stdout
    assert done.returncode == 1
