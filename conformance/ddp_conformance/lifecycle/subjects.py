"""The kind of subject that is a whole training program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from ddp_conformance.framework.allowance import Groups, Terms, checked_terms
from ddp_conformance.framework.subjects import Subject
from ddp_conformance.launched.order import Death, Named

DEATHS: tuple[Death, ...] = ("raises", "is killed", "exits with 0")


@dataclass(frozen=True, kw_only=True)
class Training(Subject):
    """The function that a training script runs on every rank, as torchrun would start it.

    ``run`` is called in a new process for each rank, in which the variables of torchrun
    (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` ...) are set and no process group exists. It
    is called with ``list(argv)`` if it takes an argument, and with ``sys.argv`` set in any
    case; a number other than 0 that it returns is its exit code. The working directory is
    a new folder, the same on all ranks.
    """

    kind: ClassVar[str] = "training"

    make: Callable[..., Any] = field(init=False, repr=False, default=print)
    run: Callable[..., object]
    """The function, at the top level of a module that another process can import."""
    argv: Sequence[str] = ()
    """The training entry. Two or three steps are enough: it is run about ten times."""
    index: Callable[[Any], int | None] | None = None
    """The data set index in what a sampler yields, None for padding; by default it is an index."""
    timeout: float = 120.0
    """Seconds that a run may take."""
    patience: float = 30.0
    """Seconds in which all other ranks must end after one has ended."""
    deaths: Sequence[Death] = DEATHS
    """Ways to die that are tried on each rank in turn."""
    batch_size: int = 1
    """Samples of each rank's batches, where ``pads`` or ``drops`` make all of them full."""
    copies: int = 1
    """Times that each sample comes in an epoch, as with repeated augmentation; at most."""
    groups: Groups | None = None
    """``groups(size)`` has the group of each sample, where ``pads`` or ``drops`` make each group by
    itself even."""

    def __post_init__(self) -> None:
        if not callable(self.run):
            raise ValueError(
                f"Training(run={self.run!r}): run must be the function that trains; pass the "
                "function itself, not what it returns"
            )
        object.__setattr__(self, "make", self.run)
        super().__post_init__()
        checked_terms(terms_of(self), self.name)
        for function in filter(None, (self.run, self.index)):
            Named.of(function)
        unknown = sorted(set(self.deaths) - set(DEATHS))
        if unknown or not self.deaths:
            raise ValueError(f"{self.name}: deaths must be some of {DEATHS}, not {self.deaths!r}")

    @classmethod
    def of(cls, function: Callable[..., object], traits: AbstractSet[str]) -> Self:
        """The program that a function is."""
        return cls(run=function, traits=traits)


def terms_of(subject: Training) -> Terms:
    """What the subject declares about how often each sample is delivered."""
    return Terms(subject.traits, subject.batch_size, subject.copies, subject.groups)
