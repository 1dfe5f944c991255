"""What torch's answers mean, on answers made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddp.extensions.doctor import libraries
from pytest_ddp.extensions.doctor.findings import CheckResult, Level

GPU = {"name": "NVIDIA H200", "capability": "9.0", "memory": 141 << 30, "free": 140 << 30}
CPU: dict[str, Any] = {
    "torch": "2.13.0+cpu",
    "cuda": None,
    "hip": None,
    "distributed": True,
    "backends": {"gloo": True, "nccl": False, "mine": True},
    "nccl": "",
    "recorder": "",
    "gpus": [],
}
CUDA = {**CPU, "cuda": "13.0", "backends": {"gloo": True, "nccl": True}, "nccl": "2.28.3"}


def found(facts: dict[str, Any], problem: str = "", gpus: int = 0) -> dict[str, CheckResult]:
    return {finding.topic: finding for finding in libraries.findings(facts, problem, gpus)}


def test_a_build_for_the_cpu() -> None:
    lines = found(CPU)
    assert lines["torch"].text == "2.13.0+cpu, built for the CPU"
    assert lines["backends"].text == "gloo, mine; not in this torch: nccl"
    assert "torch's GPUs" not in lines
    assert all(line.level is Level.OK for line in lines.values())


def test_gpus_with_their_memory() -> None:
    lines = found({**CUDA, "gpus": [GPU]}, gpus=1)
    assert lines["backends"].text.startswith("gloo, nccl 2.28.3")
    assert "NVIDIA H200 (9.0, 144384 MiB, 143360 free)" in lines["torch's GPUs"].text


def test_counts_that_differ_are_reported() -> None:
    line = found({**CUDA, "gpus": [GPU, GPU]}, gpus=1)["torch's GPUs"]
    assert line.level is Level.NOTE
    assert line.text == "torch sees 2, the plugin counts 1"


def test_gpus_that_fail() -> None:
    line = found({**CUDA, "gpu_problem": "RuntimeError: CUDA error: ECC"}, gpus=1)["torch's GPUs"]
    assert line.level is Level.NOTE
    assert "ECC" in line.text


@pytest.mark.parametrize(
    ("facts", "problem", "topic"),
    [
        ({}, "the probe of torch failed (signal 4): no output", "torch"),
        ({**CPU, "distributed": False, "backends": {}}, "", "torch"),
        ({**CPU, "backends": {"gloo": False}}, "", "backends"),
    ],
)
def test_what_stops(facts: dict[str, Any], problem: str, topic: str) -> None:
    facts = facts and {**facts, "recorder": ""}
    line = found(facts, problem)[topic]
    assert line.level is Level.STOP
    assert "install torch" in line.fix


def test_a_recorder_that_is_off() -> None:
    problem = "TORCH_FR_BUFFER_SIZE=0 turns torch's flight recorder off: hangs are left to"
    line = found({**CPU, "recorder": problem})["recorder"]
    assert line.level is Level.NOTE
    assert line.fix == "unset TORCH_FR_BUFFER_SIZE"
