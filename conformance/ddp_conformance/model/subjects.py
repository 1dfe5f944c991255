"""The kind of subject that is a model with the step that trains it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import nn

from ddp_conformance.framework.subjects import Subject
from ddp_conformance.launched.order import Named

TOLERANCE = 1e-4
"""The tolerance of gradients, decisions and statistics, unless the subject has its own."""


class Trainee(NamedTuple):
    """What ``make`` returns, in this order."""

    model: nn.Module
    step: Callable[[int], object]
    evaluate: Callable[[], object] | None = None
    checkpoint: Callable[[], Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class TrainStep(Subject):
    """A wrapped model and what makes one optimizer step with it.

    ``make(case)`` returns ``(model, step)``. ``step(number)`` trains the model on batch
    ``number``: on this rank's share of ``case.size`` samples, or on all of them where
    ``case.world_size`` is 1. It is called in processes of its own, with a process group of
    ``case.world_size`` ranks; and in one more process, without a group, with a world size of
    1, which gives the right gradients. The model must be small, because the values of its
    gradients are recorded, and it must have no dropout.

    A rank may have parameters that another one lacks, as experts or stages of a pipeline: by the
    names that they have in one process. Parts of a tensor are DTensors.

    With the trait ``buffers`` it returns ``(model, step, evaluate, checkpoint)``: ``evaluate()``
    makes forward passes as between epochs, ``checkpoint()`` returns the state by name that would
    be saved. Both are called on every rank, after training steps.

    With the trait ``decides`` a step returns a mapping of what it decided: ``norm``, of the
    gradients of all ranks before they were clipped; ``scale``, what the loss was multiplied by, or
    what its gradients are divided by after the backward pass; and whatever else must be equal. A
    step is skipped by not calling the optimizer.

    With the trait ``sync_batchnorm`` normalisations see the samples of all ranks; where
    ``case.world_size`` is 1, a plain BatchNorm is the same. With the trait ``batch_statistics``
    each rank's normalisations see its own samples alone, which one process cannot do: gradients are
    not compared with its.
    """

    kind: ClassVar[str] = "train step"

    tolerance: float | None = None
    """The tolerance of gradients, relative to the largest value of each parameter's gradient.

    A tenth of it, relative to the largest of all parameters, is always allowed. By default it is
    :data:`TOLERANCE`, or what rounding makes of this step if that is more."""
    timeout: float = 60.0
    """Seconds that a run may take."""
    steps: int = 13
    """Steps that are made, from number 0 on; at least 2. What happens every tenth time shows in 13
    of them."""
    reason: str = ""
    """Why the subject has the trait ``batch_statistics``, which needs a reason."""

    @property
    def limit(self) -> float:
        """The tolerance, the subject's own or the default."""
        return TOLERANCE if self.tolerance is None else self.tolerance

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 2:
            raise ValueError(f"{self.name}: steps= is at least 2")
        if ("batch_statistics" in self.traits) != bool(self.reason.strip()):
            raise ValueError(
                f"{self.name}: the trait 'batch_statistics' and reason= need each other; explain "
                "why each rank normalises by its own samples, or convert to SyncBatchNorm"
            )
        Named.of(self.make)
