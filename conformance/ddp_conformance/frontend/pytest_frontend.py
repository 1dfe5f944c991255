"""Checks as parametrized tests: one test for each subject, guarantee and world size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import pytest
from _pytest.outcomes import Failed

from ddp_conformance.framework.ranks import Ranks, current_ranks
from ddp_conformance.framework.registry import Check, checks_for, known_ids
from ddp_conformance.framework.subjects import Subject
from ddp_conformance.framework.verdict import GuaranteeError

F = TypeVar("F", bound=Callable[..., Any])

Reasons: TypeAlias = Mapping[str, str]
"""Guarantee id to the reason why a subject is known to break it."""

ExpectedFailures: TypeAlias = Reasons | Callable[[Subject], Reasons]

WORLD_SIZES = (1, 2, 3, 4)


@dataclass(frozen=True, repr=False)
class BoundCheck:
    """A check with what is expected of it: the ``check`` argument of the test."""

    check: Check
    expected: str | None = None
    """Why the subject is known to break the guarantee; None if it must keep it."""

    def __repr__(self) -> str:
        return f"<{self.id}>"

    @property
    def id(self) -> str:
        """The guarantee's id."""
        return self.check.id

    def __call__(self, subject: Subject, ranks: Ranks | None = None) -> None:
        """Run the check in every rank of the running test, or in those given.

        A failure that is expected ends in xfail. That it does not occur is a failure too,
        except on one rank, where most breaches cannot show.
        """
        __tracebackhide__ = True
        ranks = current_ranks() if ranks is None else ranks
        try:
            self.check(subject, ranks)
        except GuaranteeError as violation:
            if self.expected is None:
                raise
            pytest.xfail(f"{self.expected}\n{violation}")
        if self.expected is not None and ranks.world_size > 1:
            raise KeptError(
                f"{self.id} is expected to fail for {subject.name} ({self.expected}), but holds; "
                "remove it from expected_failures",
                pytrace=False,
            )


class KeptError(Failed):
    """A failure that was expected did not occur."""


Pair: TypeAlias = tuple[Subject, BoundCheck]


def bind_checks(
    subjects: Sequence[Subject], expected_failures: ExpectedFailures | None = None
) -> list[Pair]:
    """Every subject with each check of its kind; raises ``ValueError`` for what cannot be."""
    _check_subjects(subjects)
    reasons = {s.name: _reasons(s, expected_failures) for s in subjects}
    _check_ids(subjects, reasons)
    return [
        (subject, BoundCheck(check, reasons[subject.name].get(check.id)))
        for subject in subjects
        for check in checks_for(subject)
    ]


def parametrize_with_checks(
    subjects: Sequence[Subject],
    expected_failures: ExpectedFailures | None = None,
    world_size: Sequence[int] = WORLD_SIZES,
    *,
    share_ranks: bool = False,
) -> Callable[[F], F]:
    """Parametrize ``test(subject, check)`` with all checks of the subjects' kinds.

    The test body is ``check(subject)``. A check that a subject's traits exclude is deselected, and
    skipped with the reason where the command line names it. ``expected_failures`` maps guarantee
    ids to reasons, for all subjects, or is a function that gives such a mapping for one; an id that
    is unknown or applies to none of them is a ``ValueError``. With ``share_ranks`` no rank is
    replaced for what a subject has left in modules: faster, where that is known to matter to none.
    """
    pairs = bind_checks(subjects, expected_failures)
    params = [param(pair, share_ranks=share_ranks) for pair in pairs]

    def decorate(test: F) -> F:
        test = pytest.mark.parametrize(("subject", "check"), params)(test)
        pytest.mark.ddp(world_size=list(world_size))(test)
        return test

    return decorate


def param(pair: Pair, world_size: int | None = None, *, share_ranks: bool = False) -> Any:
    """The parameters of one test; with a world size, if the test has none of its own."""
    subject, check = pair
    obstacle = check.check.obstacle(subject)
    # The plugin deselects these tests; what is left of them, or runs without it, is skipped.
    marks: list[pytest.MarkDecorator] = [pytest.mark.skip(reason=obstacle)] if obstacle else []
    name = f"{subject.name}-{check.id}"
    if world_size is not None:
        name = f"{name}-ws{world_size}"
    marks.append(ranks_for(subject, world_size))
    if not share_ranks:
        marks.append(pytest.mark.ddp(module_state=module_state_of(subject)))
    return pytest.param(subject, check, id=name, marks=marks)


def module_state_of(subject: Subject) -> str:
    """A name that the tests of one subject share, in all files, and no other tests have."""
    return f"{subject.kind} {getattr(subject.make, '__module__', '')}:{subject.name}"


def ranks_for(subject: Subject, world_size: int | None = None) -> pytest.MarkDecorator:
    """The mark that places a subject: with a GPU for each rank if it needs them."""
    arguments: dict[str, Any] = {"backend": "nccl"} if "gpu" in subject.traits else {}
    if world_size is not None:
        arguments["world_size"] = world_size
    mark: pytest.MarkDecorator = pytest.mark.ddp(**arguments)
    return mark


def _reasons(subject: Subject, expected: ExpectedFailures | None) -> Reasons:
    if expected is None:
        return {}
    return expected(subject) if callable(expected) else expected


def _check_subjects(subjects: Sequence[Subject]) -> None:
    names: set[str] = set()
    for subject in subjects:
        if not isinstance(subject, Subject):
            raise ValueError(
                f"{subject!r} is not a subject; wrap its factory, for example in Loader(make=...)"
            )
        if subject.name in names:
            raise ValueError(f"two subjects are called {subject.name!r}; pass name= to one of them")
        names.add(subject.name)
    if not names:
        raise ValueError("there is no subject to check")


def _check_ids(subjects: Sequence[Subject], reasons: Mapping[str, Reasons]) -> None:
    applicable = {
        check.id for s in subjects for check in checks_for(s) if check.obstacle(s) is None
    }
    expected = {key: why for mapping in reasons.values() for key, why in mapping.items()}
    for guarantee_id, why in sorted(expected.items()):
        if guarantee_id not in known_ids():
            raise ValueError(
                f"expected_failures: there is no guarantee {guarantee_id!r}; "
                f"known: {', '.join(known_ids())}"
            )
        if guarantee_id not in applicable:
            raise ValueError(
                f"expected_failures: {guarantee_id} applies to none of the subjects; remove it"
            )
        if not isinstance(why, str) or not why.strip():
            raise ValueError(
                f"expected_failures: {guarantee_id} has no reason, but {why!r}; say in a few "
                "words why it fails, for example 'issue 12'"
            )
