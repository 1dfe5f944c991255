"""Judges of checkpoints: pure functions from what ranks saw of saved and resumed runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddp_conformance.determinism.history import LoopRaised, LoopSaved
from ddp_conformance.determinism.judge import (
    judge_same_run,
    ranks_of,
    same_parameters,
    steps_of,
)
from ddp_conformance.framework.history import History
from ddp_conformance.framework.verdict import Violation, ranks_in_words


def unsaved(history: History) -> str:
    """Which checkpoint a run did not leave, as a predicate about the run; empty if it left all."""
    for seen in history:
        if isinstance(seen, LoopSaved) and not seen.files:
            return f"left nothing at the path of Leg.{seen.where}"
    return ""


def judge_saving(history: History) -> tuple[Violation, ...]:
    """The run that saves on its way is the one that never saves."""
    return judge_same_run(history, "saving")


RESUMED = "resumed"
"""The run that has all files of its checkpoint."""
WITHOUT = "without "
"""How the name of a run begins whose checkpoint lacks the file that the rest of it names."""
WITHOUT_ANY = f"{WITHOUT}any file"
UNREAD = "goes on as well without any file of its checkpoint"
"""The violation of a loop that keeps all in its process, or begins anew."""


def judge_incomplete(history: History) -> tuple[Violation, ...]:
    """Each run without a file is refused, or is the run that has all files."""
    return tuple(v for run in _runs_without_a_file(history) for v in _refused_or_same(history, run))


def unread(history: History) -> str:
    """Why it is not known that the loop reads its checkpoint; empty if that is known."""
    runs = _runs_without_a_file(history)
    emptied = WITHOUT_ANY if len(runs) > 1 else runs[0]
    is_read = raised_in(history, emptied) or any(_differences(history, emptied))
    return "" if is_read else UNREAD


def _runs_without_a_file(history: History) -> list[str]:
    runs = dict.fromkeys(getattr(record, "run", "") for record in history)
    return [run for run in runs if run.startswith(WITHOUT) and run != WITHOUT_ANY]


def _refused_or_same(history: History, run: str) -> Iterator[Violation]:
    if raised_in(history, run):
        yield from half_refused(history, run, ranks_of(history))
    else:
        yield from _differences(history, run)


def half_refused(history: History, run: str, ranks: Sequence[int]) -> Iterator[Violation]:
    """Ranks of a run in which some rank raised that go on, or that had made a step before."""
    raised = raised_in(history, run)
    first, error = next(iter(raised.items()))
    others = [rank for rank in ranks if rank not in raised]
    if others:
        verb = "goes on" if len(others) == 1 else "go on"
        yield Violation(f"{run}: {ranks_in_words(others)} {verb}, and rank {first} raises {error}")
        return
    for rank, own in steps_of(history, run).items():
        number = f"{len(own)} step{'' if len(own) == 1 else 's'}"
        yield Violation(f"{run}: rank {rank} makes {number} before it raises {raised[rank]}")


def raised_in(history: History, run: str) -> dict[int, str]:
    """The error of each rank that raised."""
    return {r.rank: r.error for r in history if isinstance(r, LoopRaised) and r.run == run}


def _differences(history: History, run: str) -> Iterator[Violation]:
    """Differences from the run that resumed with all files."""
    yield from same_parameters(history, run, "begin", RESUMED)
    yield from judge_same_run(history, run, like=RESUMED)
