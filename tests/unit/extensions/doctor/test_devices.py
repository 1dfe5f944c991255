"""GPUs of machines that are simulated by the tools on PATH."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from pytest_ddp.extensions.doctor import device_findings, report
from pytest_ddp.extensions.doctor.findings import CheckResult, Level
from pytest_ddp.launch import gpus

Install: TypeAlias = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a tool on PATH that prints a text and ends with a code."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device_findings, "_AMD_NODE", str(tmp_path / "kfd"))
    monkeypatch.setattr(device_findings, "_CARDS", tmp_path / "drm")
    gpus.physical_gpus.cache_clear()

    def put(name: str, text: str = "", code: int = 0) -> None:
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\ncat <<END\n{text}\nEND\nexit {code}\n")
        tool.chmod(0o755)

    yield put
    gpus.physical_gpus.cache_clear()


def about(topic: str) -> list[CheckResult]:
    return [finding for finding in device_findings.findings() if finding.topic == topic]


def listing(count: int, instances: int = 0) -> str:
    """``nvidia-smi -L``."""
    lines = []
    for index in range(count):
        lines.append(f"GPU {index}: NVIDIA H200 (UUID: GPU-{index}f-0)")
        lines += [f"  MIG 1g  Device {i}: (UUID: MIG-{index}{i}-0)" for i in range(instances)]
    return "\n".join(lines)


def test_the_topology_is_plain_text(install: Install) -> None:
    """nvidia-smi underlines its head for a file, too (driver 580)."""
    install("nvidia-smi", "\x1b[4mGPU0\tCPU Affinity\x1b[0m\nGPU0\t X \t0-15")
    assert report.topology() == "GPU0\tCPU Affinity\nGPU0\t X \t0-15"


def test_gpus_are_named(install: Install) -> None:
    install("nvidia-smi", listing(2))
    (found,) = about("NVIDIA")
    assert found.text == "2 GPUs: GPU-0f-0, GPU-1f-0"


def test_instances_are_counted_and_their_limit_is_reported(install: Install) -> None:
    install("nvidia-smi", listing(1, instances=2))
    found, limit = about("NVIDIA")
    assert found.text == "1 GPUs with 2 MIG instances: GPU-0f-0"
    assert limit.level is Level.NOTE
    assert "one MIG instance" in limit.text


def test_a_driver_that_fails_is_quoted(install: Install) -> None:
    install("nvidia-smi", "Failed to initialize NVML: Driver/library version mismatch", 18)
    (found,) = about("NVIDIA")
    assert found.level is Level.NOTE
    assert "code 18" in found.text
    assert "version mismatch" in found.text
    assert found.fix


@pytest.mark.parametrize(
    ("setting", "left", "level"),
    [("1", "GPU-1f-0", Level.OK), ("", "no GPU", Level.NOTE), ("7", "no GPU", Level.NOTE)],
)
def test_what_a_variable_leaves(
    install: Install, monkeypatch: pytest.MonkeyPatch, setting: str, left: str, level: Level
) -> None:
    install("nvidia-smi", listing(2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    (found,) = about("visibility")
    assert found.text == f"CUDA_VISIBLE_DEVICES={setting} leaves {left}"
    assert found.level is level


def test_other_variables_are_shown(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0,1")
    (found,) = about("visibility")
    assert found.text == "HIP_VISIBLE_DEVICES=0,1"


@pytest.mark.parametrize("tool", ["amd-smi", "rocm-smi"])
def test_amd_is_known_by_its_tools(install: Install, tool: str) -> None:
    install(tool)
    (found,) = about("AMD")
    assert tool in found.text


def test_amd_is_known_by_its_node(install: Install, tmp_path: Path) -> None:
    (tmp_path / "kfd").touch()
    (found,) = about("AMD")
    assert str(tmp_path / "kfd") in found.text


def test_a_node_that_may_not_be_opened(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kfd").touch()
    monkeypatch.setattr("pytest_ddp.system.stdlib.os.access", lambda path, mode: False)
    (found,) = about("AMD")
    assert found.level is Level.NOTE
    assert "render" in found.fix


def test_intel_is_known_by_its_driver(install: Install, tmp_path: Path) -> None:
    card = tmp_path / "drm" / "renderD128" / "device"
    card.mkdir(parents=True)
    (tmp_path / "xe").mkdir()
    (card / "driver").symlink_to(tmp_path / "xe")
    (found,) = about("Intel")
    assert "/dev/dri/renderD128 (xe)" in found.text


def test_none_at_all(install: Install) -> None:
    install("nvidia-smi", "")
    assert not about("AMD")
    assert not about("Intel")
    (usable,) = about("GPUs")
    assert usable.text.startswith("none usable")
