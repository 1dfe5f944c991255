"""The guarantees and their checks, found in the folders of their groups."""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ddp_conformance.framework import nemesis
from ddp_conformance.framework.ranks import Ranks, current_ranks
from ddp_conformance.framework.recording import describe
from ddp_conformance.framework.subjects import Subject
from ddp_conformance.framework.verdict import UndecidedError, Violation, broken, listing

GROUPS = (
    *("sampling", "windows", "writing", "metrics", "callbacks", "lifecycle"),
    *("caches", "model", "determinism"),
)
"""Folders with a module ``checks`` and a folder ``mutants``."""


class Level(enum.StrEnum):
    """How binding a guarantee is, in the terms of RFC 2119."""

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
    """Whether the guarantee is one of the project's main ones."""


def nothing_to_remark(subject: Any) -> str:
    """Make no remark, for a check that examines all that its entry names."""
    return ""


_remarks: list[str] = []


def remark(text: str) -> None:
    """Add a remark to the running check, on all ranks: what a check that passes could not examine;
    for one that fails, a line below the evidence."""
    _remarks.append(text)


def remarked() -> str:
    """The remarks of the last check of this process."""
    return "; ".join(_remarks)


@dataclass(frozen=True)
class Check:
    """Decides one guarantee for one or more kinds of subject."""

    guarantee: Guarantee
    kinds: tuple[type[Subject], ...]
    find: Callable[[Any, Ranks], Sequence[Violation]]
    """Records on every rank, gathers, judges; returns the same violations on all ranks."""
    needs: frozenset[str] = frozenset()
    """Traits that a subject must have for the guarantee to apply."""
    excused: frozenset[str] = frozenset()
    """Traits with which the guarantee does not apply."""
    remark: Callable[[Any], str] = nothing_to_remark
    """What a check that passes has not examined, for the table and the report. What is found only
    while it runs goes to :func:`remark`."""

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

    def __call__(self, subject: Subject, ranks: Ranks | None = None) -> None:
        """Raise :class:`GuaranteeError`, with the same text on all ranks, or return.

        Every rank must call it. ``ranks`` are by default those of the running ddp test.
        Raises :class:`~ddp_conformance.framework.verdict.UndecidedError` if the subject's own
        code raised.
        """
        __tracebackhide__ = True  # the evidence is in the text, our frames are not
        ranks = current_ranks() if ranks is None else ranks
        _remarks.clear()
        try:
            with nemesis.at_work(self.id, ranks.rank):
                # Runs that are repeated show the same breach again.
                violations = tuple(dict.fromkeys(self.find(subject, ranks)))
        except UndecidedError as error:
            raise UndecidedError(f"{self.id} is undecided: {error}", error.evidence) from None
        except _OF_WRONG_DATA as error:
            # A judge met data that no component of this kind delivers; all ranks judge the same.
            reason = describe(error)
            raise UndecidedError(
                f"{self.id} is undecided: {subject.name} delivered what no {subject.kind} does:\n"
                f"{listing([reason])}",
                [reason],
            ) from None
        if violations:
            # The seed is 0 without the option, and if the option does not exist.
            seed = [f"seen with {nemesis.OPTION}={nemesis.seed()}"] if nemesis.seed() else []
            where = f"at world size {ranks.world_size}"
            statement = self.guarantee.statement
            raise broken(self.id, statement, subject.name, where, violations, *_remarks, *seed)


_OF_WRONG_DATA = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@cache
def all_checks() -> tuple[Check, ...]:
    """The checks of all groups, by id."""
    found: list[Check] = []
    for group in GROUPS:
        found += importlib.import_module(f"ddp_conformance.{group}.checks").CHECKS
    return tuple(sorted(found, key=lambda check: check.id))


def checks_for(subject: Subject) -> tuple[Check, ...]:
    """The checks of the subject's kind, whether or not its traits let them apply."""
    return tuple(check for check in all_checks() if isinstance(subject, check.kinds))


def all_kinds() -> dict[str, type[Subject]]:
    """The kinds of subjects that have a check, by the name of their option: ``datamodule``."""
    kinds = {kind for check in all_checks() for kind in check.kinds}
    return {kind.__name__.lower(): kind for kind in sorted(kinds, key=lambda k: k.__name__)}


def known_ids() -> tuple[str, ...]:
    """The ids of all guarantees that have a check, sorted, each once."""
    return tuple(sorted({check.id for check in all_checks()}))
