"""``python -m pytest_ddp doctor`` as a user runs it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.environment import without_outer_run
from tests.warm import interpreter

DOCTOR = ("-m", "pytest_ddp", "doctor")
GUEST = """
import pytest

def pytest_sessionfinish():
    open("{written}", "a").write("end")

def pytest_configure(config):
    if config.pluginmanager.hasplugin("pytest_ddp.rank.hooks.fixtures") and "{breaks}":
        raise RuntimeError("not in a rank")
"""


def doctor(directory: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return interpreter.run(
        (*DOCTOR, *arguments), timeout=300, cwd=directory, env=without_outer_run() | env
    )


def install(folder: Path, name: str, *, breaks: str = "") -> None:
    """A plugin as pip installs it."""
    site = folder / "site-packages"
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[pytest11]\n{name} = {name}\n")
    (info / "top_level.txt").write_text(f"{name}\n")
    (site / f"{name}.py").write_text(GUEST.format(written=folder / name, breaks=breaks))


def test_this_machine_can(tmp_path: Path) -> None:
    install(tmp_path, "reporting")
    install(tmp_path, "unfit", breaks="yes")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    run = doctor(tmp_path, "--json", PYTHONPATH=str(tmp_path / "site-packages"))
    assert run.returncode == 0, run.stdout + run.stderr
    shown = json.loads(run.stdout)
    assert shown["able"] is True
    assert shown["versions"]["pytest"] == pytest.__version__
    lines = {f"{found['topic']} {found['level']} {found['text']}" for found in shown["findings"]}

    def shows(*parts: str) -> bool:
        return any(all(part in line for part in parts) for line in lines)

    assert shows("trial ok", "a ddp test of two ranks passes"), lines
    assert shows("start ok", "ranks are forked"), lines
    assert shows("plugins ok", "but for reports and the session's end: hyp", "reporting 1.0")
    assert shows("plugins note unfit 1.0 is left out of ranks: its pytest_configure fails"), lines
    assert shows("plugins ok in the pytest process alone, where they are of use: pytest-split")
    assert (tmp_path / "reporting").read_text() == "end", "in the pytest process, once"


def test_what_stops_is_the_exit_code(tmp_path: Path) -> None:
    long = tmp_path / ("x" * (90 - len(str(tmp_path)) - 1))
    long.mkdir()
    # This variable makes interpreters fresh, which costs least where none runs a ddp test.
    run = doctor(tmp_path, TMPDIR=str(long), TORCH_FR_BUFFER_SIZE="0")
    assert run.returncode == 1
    assert "STOP  TMPDIR" in run.stdout
    assert "no ddp test was tried" in run.stdout
    assert "note  recorder      TORCH_FR_BUFFER_SIZE=0" in run.stdout


def test_a_torch_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDP_TESTS_FRESH", "1")
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so: no such file')\n")
    run = doctor(tmp_path)
    assert run.returncode == 1
    assert "STOP  torch" in run.stdout
    assert "libtorch.so: no such file" in run.stdout
    assert "Traceback" not in run.stdout + run.stderr


def test_ranks_that_cannot_be_forked(tmp_path: Path) -> None:
    install(tmp_path, "threads")
    (tmp_path / "site-packages" / "threads.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    run = doctor(tmp_path, PYTHONPATH=str(tmp_path / "site-packages"))
    lines = " ".join(run.stdout.split())
    assert "note start ranks are spawned, not forked: threads run in their host" in lines
    assert lines.endswith("ddp tests can run here.")
    assert run.returncode == 0


def test_a_trial_that_fails(tmp_path: Path) -> None:
    install(tmp_path, "hostile")
    (tmp_path / "site-packages" / "hostile.py").write_text(
        "def pytest_collection_modifyitems(items):\n    raise OSError('no collection here')\n"
    )
    run = doctor(tmp_path, PYTHONPATH=str(tmp_path / "site-packages"))
    assert run.returncode == 1
    assert "STOP  trial" in run.stdout
    assert "OSError: no collection here" in " ".join(run.stdout.split())


@pytest.mark.parametrize("arguments", [("--jsn",), ("extra",)])
def test_wrong_arguments(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    run = doctor(tmp_path, *arguments)
    assert run.returncode == 2
    assert f"unrecognized arguments: {arguments[0]}" in run.stderr


@pytest.mark.parametrize(("command", "code"), [((), 0), (("--help",), 0), (("docter",), 2)])
def test_the_front(tmp_path: Path, command: tuple[str, ...], code: int) -> None:
    run = interpreter.run(("-m", "pytest_ddp", *command), timeout=60, cwd=tmp_path)
    assert run.returncode == code
    assert "doctor" in run.stdout + run.stderr
