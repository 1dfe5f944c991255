"""Sessions of the selftest end in time, and leave nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

import psutil
import pytest

from pytest_ddp.extensions.doctor.selftest import inner_session


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_holds_copies_and_is_removed(temporary: Path) -> None:
    with inner_session.folder_with("test_leases.py") as folder:
        assert folder.parent == temporary
        copy = folder / "test_leases.py"
        assert copy.read_text() == (inner_session.SUITES / "test_leases.py").read_text()
    assert not list(temporary.iterdir())


def test_one_that_does_not_end_is_ended() -> None:
    with inner_session.folder_with() as folder:
        (folder / "test_it.py").write_text(
            "import threading\n\ndef test_it():\n    threading.Event().wait()\n"
        )
        ended = inner_session.run(folder, environment={}, limit=3)
    assert ended.code is None
    assert ended.seconds >= 3
    assert not [child for child in psutil.Process().children() if "pytest" in child.cmdline()]


def test_its_code_and_all_that_it_printed() -> None:
    with inner_session.folder_with() as folder:
        (folder / "test_it.py").write_text(
            "import os\n\ndef test_it():\n    assert os.environ['A']\n"
        )
        good = inner_session.run(folder, environment={"A": "1"}, limit=60)
        bad = inner_session.run(folder, environment={"A": ""}, limit=60)
    assert (good.code, bad.code) == (0, 1)
    assert "1 passed" in good.output
    assert "1 failed" in bad.output
