"""Whether torch's flight recorder is at hand, and the text where it is not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pytest_ddp.rank.status import status_reporter

NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
RECORDED = """
import os, pickle
import torch.distributed as dist
from pytest_ddp.rank.status import status_reporter

status_reporter._ENTRIES = 3
before = dict(os.environ)
status_reporter.make_recorder()
assert os.environ == before
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(9):
    dist.barrier()
print(len(pickle.loads(status_reporter._dump())["entries"]))
"""


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
    ("env", "entries"), [({}, 3), ({NAMES[0]: "5"}, 5), ({NAMES[1]: "6"}, 6), ({NAMES[0]: "0"}, 0)]
)
def test_recorder_has_entries_where_torch_makes_it_without(
    env: dict[str, str], entries: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RECORDED],
        env=os.environ | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout == f"{entries}\n", done.stderr


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["Float"], "float32"), (["Long", "Float"], "int64"), (["Float8_e5m2"], "Float8_e5m2")],
)
def test_dtypes_have_python_s_names(names: list[str], expected: str) -> None:
    assert status_reporter._recorded_dtype(names) == expected
    assert status_reporter._recorded_dtype([]) is None
