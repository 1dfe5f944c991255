"""The kind of subject that trains: a loop that can be watched, stopped and resumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import nn

from ddp_conformance.framework.allowance import Groups, Terms, checked_terms
from ddp_conformance.framework.subjects import Subject


@dataclass(frozen=True, slots=True)
class Leg:
    """How far one call of the loop goes."""

    epochs: int
    """Train until so many epochs are done in all."""
    steps: int = 0
    """Stop before that, after so many optimizer steps in all; 0: do not."""
    save: Path | None = None
    """Leave a checkpoint here at the end."""
    resume: Path | None = None
    """Go on from this checkpoint."""


class Watch(Protocol):
    """What a loop tells while it runs, on every rank."""

    def begin(self, model: nn.Module, dataset: Any = None) -> None:
        """All is made, loaded and wrapped; the first step comes next."""

    def step(self, epoch: int, ids: Sequence[int]) -> None:
        """The optimizer has stepped, on these samples of this rank, padding left out."""

    def epoch(self, epoch: int, loss: float) -> None:
        """An epoch is over; its mean loss over the samples of all ranks."""

    def end(self, model: nn.Module) -> None:
        """The run is over."""


@dataclass(frozen=True)
class TrainLoop(Subject):
    """A training loop on ``case.size`` samples, in the ranks' process group.

    ``make(case, leg, watch)`` trains from the start, or from ``leg.resume``, as far as ``leg``
    says, and calls ``watch`` (:class:`Watch`) on the way. It uses ``case.num_workers``, and
    ``case.directory`` for its data. It seeds itself: the random states that it finds are
    different in every call and on every rank.
    """

    kind: ClassVar[str] = "training loop"

    tolerance: float = 1e-4
    """Relative difference up to which losses of different world sizes agree: the order in which
    gradients are added up is not the same."""
    batch_size: int = 1
    """Samples of each rank's batches, where ``pads`` or ``drops`` make all of them full."""
    copies: int = 1
    """Times that each sample comes in an epoch, as with repeated augmentation; at most."""
    groups: Groups | None = None
    """``groups(size)`` has the group of each sample, where ``pads`` or ``drops`` make each group by
    itself even."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_terms(terms_of(self), self.name)


def terms_of(subject: TrainLoop) -> Terms:
    """What it declares of how often each sample comes."""
    return Terms(subject.traits, subject.batch_size, subject.copies, subject.groups)
