"""The reference's metrics are those of a single process, at world sizes 1 to 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from ddp_conformance import Case, Evaluation, Metric, Subject, parametrize_with_checks
from ddp_reference.resnet.metrics import SampleMean, StageMetrics
from ddp_reference.saliency.make_data import make_data
from ddp_reference.saliency.trainer import Config, Trainer
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

WORLD_SIZES = (1, 2, 4)

# ---------------------------------------------------------------- saliency

SIZE = (8, 6)


def make_images(case: Case) -> None:
    """Files for a split in halves of ``case.size`` samples each."""
    make_data(case.directory, 2 * case.size, SIZE)


def saliency_trainer(case: Case) -> Trainer:
    config = Config(case.directory, batch_size=2, image_size=SIZE, val_fraction=0.5)
    return Trainer(config, case.world_size, case.rank)


def saliency_validation(case: Case) -> Callable[[], tuple[float, float]]:
    """Loss and normalised scanpath saliency of the untrained network."""
    return saliency_trainer(case).validate


def saliency_alone(case: Case) -> tuple[float, float]:
    return saliency_trainer(replace(case, world_size=1, rank=0)).validate()


# ---------------------------------------------------------------- resnet

CLASSES = 3


def sample_mean(case: Case) -> SampleMean:
    return SampleMean()


class StageReport:
    """Loss and accuracy of a stage as one metric."""

    def __init__(self, case: Case) -> None:
        self.metrics = StageMetrics()

    def update(self, scores: Tensor, labels: Tensor) -> None:
        self.metrics.update(scores, labels)

    def compute(self) -> dict[str, Tensor]:
        return {
            "loss": self.metrics.loss.compute(),
            "accuracy": self.metrics.accuracy.compute(),
        }

    def reset(self) -> None:
        self.metrics.loss.reset()
        self.metrics.accuracy.reset()


def scored(indices: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Scores and labels, a function of each sample alone."""
    index = torch.tensor(list(indices), dtype=torch.float64)
    scores = torch.stack([torch.sin(index * (place + 2)) * 3 for place in range(CLASSES)], dim=1)
    return scores, torch.tensor([index * index % CLASSES for index in indices])


def stage_alone(indices: Sequence[int]) -> dict[str, float]:
    scores, labels = scored(indices)
    hits = (scores.argmax(dim=1) == labels).double()
    return {"loss": float(functional.cross_entropy(scores, labels)), "accuracy": float(hits.mean())}


STATES = {"states_collectives"}
SUBJECTS = [
    Evaluation(saliency_validation, reference=saliency_alone, prepare=make_images),
    Metric(sample_mean, STATES, collectives=0),
    Metric(
        StageReport,
        STATES,
        batch=scored,
        reference=stage_alone,
        name="stage_metrics",
        collectives=0,
    ),
]


@parametrize_with_checks(SUBJECTS, world_size=WORLD_SIZES, share_ranks=True)
def test_reference(subject: Subject, check: BoundCheck) -> None:
    check(subject)
