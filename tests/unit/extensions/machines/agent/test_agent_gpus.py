"""Leases that an agent takes for node 0."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_ddp.extensions.machines.agent import agent_gpus as module
from pytest_ddp.extensions.machines.agent.agent_gpus import Leases
from pytest_ddp.extensions.machines.machine_messages import GpusLeased, LeaseGpus, ReleaseGpus
from pytest_ddp.launch import gpus
from pytest_ddp.launch.gpus import Build, Gpu
from pytest_ddp.system import stdlib


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpus, "torch_build", lambda: Build.CUDA)
    monkeypatch.setattr(gpus, "physical_gpus", lambda: (Gpu("GPU-one"), Gpu("GPU-two")))
    monkeypatch.setattr(stdlib.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def leases() -> Iterator[Leases]:
    leases = Leases()
    yield leases
    leases.close()


def order(number: int, count: int = 2, limit: float = 60.0, ranks_per_gpu: int = 1) -> LeaseGpus:
    return LeaseGpus(number, 1, count, ranks_per_gpu, limit, f"test {number}")


def test_what_the_agent_reports_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.found() == {"gpus": ("GPU-one", "GPU-two"), "gpu_kind": "cuda"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert module.found()["gpus"] == ("GPU-two",)
    monkeypatch.setattr(gpus, "torch_build", lambda: Build.CPU)
    assert module.found()["gpus"] == ()


def test_what_is_free_is_leased_at_once_and_answered_once(leases: Leases) -> None:
    leases.take(order(1))
    assert list(leases.answers()) == [GpusLeased(1, (0, 1))]
    assert list(leases.answers()) == []
    assert leases.patience == float("inf")


def test_who_waits_gets_what_is_given_back(leases: Leases) -> None:
    leases.take(order(1))
    leases.take(order(2, count=1))
    assert [answer.lease for answer in leases.answers()] == [1]
    assert leases.patience < 1
    leases.take(ReleaseGpus(1, 1))
    assert list(leases.answers()) == [GpusLeased(2, (0,))]


def test_a_wait_that_is_left_off_gives_back_what_it_has(leases: Leases) -> None:
    leases.take(order(1, count=1))
    list(leases.answers())
    leases.take(order(2, count=2))
    assert list(leases.answers()) == []  # it holds the other one now
    leases.take(ReleaseGpus(2, 1))
    leases.take(order(3, count=1))
    assert list(leases.answers()) == [GpusLeased(3, (1,))]


def test_the_refusal_after_too_long_a_wait_names_who_holds_them(leases: Leases) -> None:
    leases.take(order(1))
    list(leases.answers())
    leases.take(order(2, limit=0.1))
    deadline = time.monotonic() + 20
    while not (answers := list(leases.answers())):
        assert time.monotonic() < deadline
    (answer,) = answers
    assert (answer.lease, answer.devices) == (2, ())
    assert "2 GPUs did not come free within 0 s" in answer.refusal
    assert "GPU-one is held by process" in answer.refusal
    assert "(test 1)" in answer.refusal
    assert "xdist" not in answer.refusal


def test_more_than_there_are_is_refused_at_once(leases: Leases) -> None:
    leases.take(order(1, count=5, ranks_per_gpu=2))
    assert list(leases.answers()) == [GpusLeased(1, (), "3 GPUs are needed, 2 are visible")]
    leases.take(ReleaseGpus(1, 1))


def test_shares_leave_room_for_others(leases: Leases) -> None:
    leases.take(order(1, count=3, ranks_per_gpu=2))
    leases.take(order(2, count=1, ranks_per_gpu=2))
    assert list(leases.answers()) == [GpusLeased(1, (0, 0, 1)), GpusLeased(2, (1,))]
