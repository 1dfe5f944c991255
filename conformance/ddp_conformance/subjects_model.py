"""The kind of subject that is a model with the step that trains it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddp_conformance.launched.order import Named
from ddp_conformance.subjects import Subject


@dataclass(frozen=True)
class TrainStep(Subject):
    """A wrapped model and what makes one optimizer step with it.

    ``make(case)`` returns ``(model, step)``. ``step(number)`` trains the model on batch
    ``number``: on this rank's share of ``case.size`` samples, or on all of them where
    ``case.world_size`` is 1. It is called in processes of its own, with a process group of
    ``case.world_size`` ranks, and on one of them, alone and without a group, with a world
    size of 1: that one says what the gradients should be. The model must be small, for the
    values of its gradients are written down, and without dropout.
    """

    kind: ClassVar[str] = "train step"

    tolerance: float = 1e-4
    """Of gradients, relative to the largest value of each parameter's gradient."""
    timeout: float = 60.0
    """Seconds that a run may take."""

    def __post_init__(self) -> None:
        super().__post_init__()
        Named.of(self.make)
