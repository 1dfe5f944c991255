"""GPUs that do not come free: the wait has a bound, and says who holds them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pytest_ddp.launch import gpus
from pytest_ddp.launch.gpus import Gpu, LeaseError, lease

SHORT = 0.2


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "physical_gpus", lambda: (Gpu("GPU-0f"), Gpu("GPU-1f")))


def test_the_refusal_names_those_who_hold_gpus(tmp_path: Path) -> None:
    with lease(1, tmp_path, holder="test_a.py::test_first"):
        started = time.monotonic()
        with pytest.raises(LeaseError) as refusal, lease(2, tmp_path, limit=SHORT):
            pass
    assert time.monotonic() - started >= SHORT
    assert str(refusal.value).splitlines() == [
        "2 GPUs did not come free within 0 s: tests of other pytest processes use them",
        f"  GPU-0f is held by process {os.getpid()} (test_a.py::test_first)",
        "  Start fewer xdist workers (-n), or give the test a longer timeout.",
    ]


def test_a_refused_lease_holds_nothing(tmp_path: Path) -> None:
    with lease(1, tmp_path) as first:
        with pytest.raises(LeaseError), lease(2, tmp_path, limit=SHORT):
            pass
        with lease(1, tmp_path, limit=SHORT) as second:
            assert sorted(first + second) == [0, 1]


def test_whoever_is_before_in_the_queue_is_named(tmp_path: Path) -> None:
    note = tmp_path / "queue.holder"
    with gpus._lock(tmp_path, "queue"):
        note.write_text("process 7 (test_b.py::test_all)")
        with pytest.raises(LeaseError, match=r"process 7 \(test_b.py::test_all\) waits for GPUs"):
            lease(1, tmp_path, limit=SHORT).__enter__()


def test_free_gpus_are_had_without_any_patience(tmp_path: Path) -> None:
    with lease(2, tmp_path, limit=0.0) as both:
        assert both == (0, 1)


def test_notes_go_with_their_lease(tmp_path: Path) -> None:
    with lease(2, tmp_path, holder="somebody"):
        assert {path.name for path in tmp_path.glob("*.holder")} == {
            "GPU-0f.holder",
            "GPU-1f.holder",
        }
    assert not list(tmp_path.glob("*.holder"))
