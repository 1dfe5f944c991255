"""What torch keeps of a process that raised, read beside the one that it quotes."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_ddp.extensions.adopt.process_supervision import _raised

TRACEBACK = """Traceback (most recent call last):
  File "targets.py", line 3, in target
ValueError: only on rank 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "error"


def test_the_exception_is_the_last_line(file: Path) -> None:
    file.write_bytes(pickle.dumps(TRACEBACK))
    assert _raised(SimpleNamespace(error_files=["", str(file)]), 1) == "ValueError: only on rank 1"


@pytest.mark.parametrize("kept", [1, 10, 0])
def test_a_process_that_was_ended_while_it_wrote_has_raised_nothing(file: Path, kept: int) -> None:
    file.write_bytes(pickle.dumps(TRACEBACK)[:kept])
    assert _raised(SimpleNamespace(error_files=[str(file)]), 0) == ""


def test_a_process_without_a_file_has_raised_nothing(file: Path) -> None:
    assert _raised(SimpleNamespace(error_files=[str(file)]), 0) == ""
    assert _raised(SimpleNamespace(), 0) == ""
