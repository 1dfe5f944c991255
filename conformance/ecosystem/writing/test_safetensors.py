"""Files of safetensors that all ranks load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from ddp_conformance import Case, Subject, Writer

from conformance.ecosystem.frame.models import Net
from conformance.ecosystem.frame.parts import Part, parametrize_with_parts
from conformance.ecosystem.frame.writers import saved_by_rank_0

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

safetensors = pytest.importorskip("safetensors.torch")


def safetensors_save_file(case: Case) -> Callable[[int], None]:
    state = Net().state_dict()

    def save(number: int) -> None:
        tensors = {**state, "number": torch.tensor([number])}
        safetensors.save_file(tensors, case.directory / "model.safetensors")

    return saved_by_rank_0(case, save)


def saved_number(directory: Path) -> list[int]:
    return [int(safetensors.load_file(directory / "model.safetensors")["number"])]


PARTS = [
    Part(
        Writer(safetensors_save_file, {"published", "replaces"}, records=saved_number),
        "`save_file(tensors, path)` on rank 0, then `barrier()`",
    ),
]


@parametrize_with_parts(PARTS)
def test_safetensors(subject: Subject, check: BoundCheck) -> None:
    check(subject)
