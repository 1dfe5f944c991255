"""The kind of subject that trains: a loop that can be watched, stopped and resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import nn

from ddp_conformance.framework.allowance import Groups, Terms, checked_terms
from ddp_conformance.framework.subjects import Subject


@dataclass(frozen=True, slots=True)
class Leg:
    """The part of a training that one call of the loop makes."""

    epochs: int
    """Train until this many epochs are complete in all."""
    steps: int = 0
    """Stop earlier, after this many optimizer steps in all; 0: do not."""
    save: Path | None = None
    """Save a checkpoint here at the end."""
    resume: Path | None = None
    """Resume from this checkpoint. Raise if that cannot be: on all ranks, before the first step."""
    save_at: Mapping[int, Path] = field(default_factory=dict)
    """Save checkpoints during the training, too: after how many optimizer steps in all, 0 for
    before the first, and where. Train on after it."""


class Watch(Protocol):
    """The loop calls these methods while it runs, on every rank."""

    def begin(self, model: nn.Module, dataset: Any = None) -> None:
        """Called when the model is made, loaded and wrapped, before the first step."""

    def step(self, epoch: int, ids: Sequence[int]) -> None:
        """Called after each optimizer step, with this rank's samples without padding."""

    def epoch(self, epoch: int, loss: float) -> None:
        """Called after each epoch, with the mean loss over the samples of all ranks."""

    def end(self, model: nn.Module) -> None:
        """Called at the end of the run."""


@dataclass(frozen=True)
class TrainLoop(Subject):
    """A training loop on ``case.size`` samples, in the ranks' process group.

    ``make(case, leg, watch)`` trains from the start, or from ``leg.resume``, to the end of
    ``leg``, and calls the methods of ``watch`` (:class:`Watch`) on the way. It uses
    ``case.num_workers``, and ``case.directory`` for its data. It must seed its generators: the
    random states that it finds are different in every call and on every rank.
    """

    kind: ClassVar[str] = "training loop"

    tolerance: float = 1e-4
    """Relative tolerance between losses of different world sizes, as they add up gradients in
    different orders."""
    batch_size: int = 1
    """Samples of each rank's batches, where ``pads`` or ``drops`` make all of them full."""
    copies: int = 1
    """Times that each sample comes in an epoch, as with repeated augmentation; at most."""
    groups: Groups | None = None
    """``groups(size)`` has the group of each sample, where ``pads`` or ``drops`` make each group by
    itself even."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if "resumes_elsewhere" in self.traits and "resumes" not in self.traits:
            raise ValueError(f"{self.name}: the trait 'resumes_elsewhere' needs 'resumes'")
        checked_terms(terms_of(self), self.name)


def terms_of(subject: TrainLoop) -> Terms:
    """What the subject declares about how often each sample is delivered."""
    return Terms(subject.traits, subject.batch_size, subject.copies, subject.groups)
