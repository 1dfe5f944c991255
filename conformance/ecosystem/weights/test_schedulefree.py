"""Optimizers without a schedule, which keep a second set of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from ddp_conformance import Case, Subject, TrainStep
from torch import nn

from conformance.ecosystem.frame.models import Net, stepping, wrapped
from conformance.ecosystem.frame.parts import Part, parametrize_with_parts

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

schedulefree = pytest.importorskip("schedulefree")


def schedulefree_adamw(case: Case) -> tuple[nn.Module, Callable[[int], None]]:
    model = wrapped(case, Net())
    optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.01)
    optimizer.train()
    return model, stepping(case, model, optimizer)


PARTS = [Part(TrainStep(schedulefree_adamw), "`AdamWScheduleFree(parameters)` under DDP")]


@parametrize_with_parts(PARTS)
def test_schedulefree(subject: Subject, check: BoundCheck) -> None:
    check(subject)
