"""Whether torch's flight recorder is at hand, and what is said where it is not."""

from __future__ import annotations

import pytest

from pytest_ddp.rank.status import status_reporter

NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_nothing_is_wrong_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert status_reporter.recorder_problem() == ""
    monkeypatch.setenv(NAMES[0], "64")
    assert status_reporter.recorder_problem() == ""


def test_older_torch_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_reporter, "_dump", None)
    assert "no flight recorder" in status_reporter.recorder_problem()


@pytest.mark.parametrize("name", NAMES)
def test_size_of_nothing_turns_it_off(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "0")
    assert status_reporter.recorder_problem().startswith(f"{name}=0 turns")


def test_newer_variable_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAMES[0], "64")
    monkeypatch.setenv(NAMES[1], "0")
    assert status_reporter.recorder_problem() == ""


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["Float"], "float32"), (["Long", "Float"], "int64"), (["Float8_e5m2"], "Float8_e5m2")],
)
def test_dtypes_have_python_s_names(names: list[str], expected: str) -> None:
    assert status_reporter._recorded_dtype(names) == expected
    assert status_reporter._recorded_dtype([]) is None
