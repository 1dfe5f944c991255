"""The guarantees and the checks that decide them, found in the modules of ``checks``.

A guarantee group is one module ``ddp_conformance/checks/<group>.py`` with a tuple
``CHECKS``; adding the file is all it takes.
"""

from __future__ import annotations

import enum
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ddp_conformance import checks
from ddp_conformance.ranks import Ranks, current_ranks
from ddp_conformance.subjects import Subject
from ddp_conformance.verdict import GuaranteeError, UndecidedError, Violation, listing


class Level(enum.StrEnum):
    """How binding a guarantee is, in the words of RFC 2119."""

    MUST = "MUST"
    SHOULD = "SHOULD"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """One numbered entry of ``SPEC.md``."""

    id: str
    """Group and number, for example ``SMP-01``."""
    statement: str
    """One sentence, the same as in ``SPEC.md``."""
    level: Level = Level.MUST
    tier: int = 1
    starred: bool = False
    """One of those that the project exists for."""


@dataclass(frozen=True)
class Check:
    """Decides one guarantee for one kind of subject, or several that are observed alike."""

    guarantee: Guarantee
    kinds: tuple[type[Subject], ...]
    find: Callable[[Any, Ranks], Sequence[Violation]]
    """Records on every rank, gathers, judges; the same violations on all ranks."""
    needs: frozenset[str] = frozenset()
    """Traits without which the guarantee says nothing about a subject."""
    excused: frozenset[str] = frozenset()
    """Traits that free a subject from it."""
    gpus: int = 0
    """GPUs without which there is nothing to observe."""

    @property
    def id(self) -> str:
        """The guarantee's id."""
        return self.guarantee.id

    def obstacle(self, subject: Subject) -> str | None:
        """Why the check does not apply to a subject of its kind; None if it does."""
        missing = sorted(self.needs - subject.traits)
        if missing:
            return f"{self.id} needs the trait {', '.join(map(repr, missing))}"
        excuses = sorted(self.excused & subject.traits)
        return f"{self.id} does not bind the trait {excuses[0]!r}" if excuses else None

    def shortage(self) -> str | None:
        """Why this machine cannot decide it; None if it can."""
        found = torch.cuda.device_count() if self.gpus else 0
        missing = self.gpus > found
        return f"{self.id} needs {self.gpus} GPUs, {found} found" if missing else None

    def __call__(self, subject: Subject, ranks: Ranks | None = None) -> None:
        """Raise :class:`GuaranteeError`, with the same text on all ranks, or return.

        Every rank must call it. ``ranks`` are by default those of the running ddp test.
        Raises :class:`~ddp_conformance.verdict.UndecidedError` if the subject's own
        code raised.
        """
        __tracebackhide__ = True  # the evidence is in the text, our frames are not
        ranks = current_ranks() if ranks is None else ranks
        try:
            violations = self.find(subject, ranks)
        except UndecidedError as error:
            raise UndecidedError(f"{self.id} is undecided: {error}") from None
        if violations:
            raise GuaranteeError(
                f"{self.id}: {self.guarantee.statement}\n"
                f"{subject.name} breaks it at world size {ranks.world_size}:\n"
                f"{listing(violations)}"
            )


@cache
def all_checks() -> tuple[Check, ...]:
    """The checks of all groups, by id."""
    found: list[Check] = []
    for module in pkgutil.iter_modules(checks.__path__, f"{checks.__name__}."):
        found += getattr(importlib.import_module(module.name), "CHECKS", ())
    return tuple(sorted(found, key=lambda check: check.id))


def checks_for(subject: Subject) -> tuple[Check, ...]:
    """The checks of the subject's kind, whether or not its traits let them apply."""
    return tuple(check for check in all_checks() if isinstance(subject, check.kinds))


def known_ids() -> tuple[str, ...]:
    """The ids of all guarantees that have a check, sorted, each once."""
    return tuple(sorted({check.id for check in all_checks()}))
