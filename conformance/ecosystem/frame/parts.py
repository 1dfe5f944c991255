"""Parts of other people's libraries, with what is known of them, and the tests made of that.

A part that breaks a guarantee is a strict expected failure: a release that mends it turns its test
red. Nothing is said to be broken without a script in ``truth/`` that shows the fault without any
code of this project, and that ``test_truth.py`` runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from ddp_conformance import Subject, UndecidedError
from ddp_conformance.framework.ranks import Ranks, current_ranks
from ddp_conformance.frontend.pytest_frontend import BoundCheck, KeptError, bind_checks, param

TRUTH = Path(__file__).parents[1] / "truth"

WORLD_SIZES = (2, 3)
"""Two ranks are those of most reports; three show what only comes out even on two."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Breach:
    """One fault, and the guarantees that it breaks."""

    guarantees: tuple[str, ...]
    why: str
    truth: str
    """The script that shows the breach, as ``library/name.py`` below ``truth/``."""
    issue: str = ""
    """The public issue about the fault, as ``project#number``; empty for none."""

    def __post_init__(self) -> None:
        if not self.script.is_file():
            raise ValueError(f"{self.script} does not exist; add the script that proves the breach")

    @property
    def script(self) -> Path:
        """The file that shows the fault."""
        return TRUTH / self.truth

    @property
    def reason(self) -> str:
        """The reason in one line, for the expected failure."""
        return f"{self.issue}: {self.why}" if self.issue else self.why


@dataclass(frozen=True)
class Part:
    """A part as people use it, with what it is known to break or to refuse."""

    subject: Subject
    use: str
    """The calls that it is made of, for the page."""
    breaches: Sequence[Breach] = ()
    refuses: Mapping[str, str] = field(default_factory=dict)
    """Guarantee to a pattern in the error that all ranks raise, in place of a verdict."""
    world_sizes: tuple[int, ...] = WORLD_SIZES
    undecided: Mapping[str, str] = field(default_factory=dict)
    """Guarantee to a pattern in the reason why it cannot be judged for this part."""

    @property
    def broken(self) -> dict[str, Breach]:
        """The fault behind each guarantee that is broken."""
        return {name: breach for breach in self.breaches for name in breach.guarantees}


class RefusedCheck(BoundCheck):
    """A check that cannot be made, because the part raises on all ranks and says why."""

    def __call__(self, subject: Subject, ranks: Ranks | None = None) -> None:
        __tracebackhide__ = True
        ranks = current_ranks() if ranks is None else ranks
        try:
            self.check(subject, ranks)
        except UndecidedError as error:
            if self._is_refusal(error.evidence, ranks.world_size):
                pytest.xfail(f"refuses: {error.evidence[0]}")
            raise
        raise KeptError(f"{subject.name} does not refuse {self.id} any more", pytrace=False)

    def _is_refusal(self, raised: Sequence[str], world_size: int) -> bool:
        """Whether every rank raised, and each time what was expected."""
        everywhere = all(
            any(f"rank {rank}: " in line for line in raised) for rank in range(world_size)
        )
        return everywhere and all(re.search(self.expected or "", line) for line in raised)


class UndecidedCheck(BoundCheck):
    """A check that cannot be decided for its part, and says why."""

    def __call__(self, subject: Subject, ranks: Ranks | None = None) -> None:
        __tracebackhide__ = True
        ranks = current_ranks() if ranks is None else ranks
        try:
            self.check(subject, ranks)
        except UndecidedError as error:
            if re.search(self.expected or "", str(error)):
                pytest.xfail(str(error))
            raise
        raise KeptError(f"{self.id} can be decided for {subject.name}", pytrace=False)


def parametrize_with_parts(parts: Sequence[Part], *, share_ranks: bool = False) -> Callable[[F], F]:
    """Parametrize ``test(subject, check)`` with every check of every part, on its world sizes.

    What a library warns of is its own matter, and no error here. ``share_ranks`` is for libraries
    that keep nothing for the process by which one part could change another's verdict: ranks of
    their own would import the library again for each part.
    """
    subjects = [part.subject for part in parts]
    reasons = {p.subject.name: {i: b.reason for i, b in p.broken.items()} for p in parts}
    pairs = bind_checks(subjects, lambda subject: reasons[subject.name])
    known = {part.subject.name: part for part in parts}

    def params() -> Iterator[Any]:
        for subject, check in pairs:
            part = known[subject.name]
            if check.id in part.refuses:
                check = RefusedCheck(check.check, part.refuses[check.id])
            if check.id in part.undecided:
                check = UndecidedCheck(check.check, part.undecided[check.id])
            for world_size in part.world_sizes:
                yield param((subject, check), world_size, share_ranks=share_ranks)

    def decorate(test: F) -> F:
        test = pytest.mark.parametrize(("subject", "check"), list(params()))(test)
        pytest.mark.filterwarnings("default")(test)
        return test

    return decorate
