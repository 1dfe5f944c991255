"""Judge of runs that go on with another number of ranks: pure, from what ranks saw."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddp_conformance.determinism.history import (
    LoopParameters,
    LoopRounding,
    LoopStep,
    Sketch,
)
from ddp_conformance.determinism.judge import REORDERED, loosely, steps_of
from ddp_conformance.determinism.judge_checkpoints import UNREAD, half_refused, raised_in
from ddp_conformance.framework.allowance import Terms
from ddp_conformance.framework.history import History
from ddp_conformance.framework.verdict import Violation
from ddp_conformance.launched.process.saving import bare_name
from pytest_ddp.extensions.worlds.parity import FACTOR

UNCOUNTED = frozenset({"replacement", "endless"})
"""Traits with which an epoch does not have each sample equally often."""


@dataclass(frozen=True, slots=True)
class Move:
    """A run that is saved on one number of ranks, and resumed on another."""

    part: str
    """The place at which the run is interrupted: ``epoch end``, ``mid-epoch``."""
    before: int
    """Number of ranks that save: all, or 1 for rank 0 alone."""
    after: int
    """Number of ranks that resume."""

    @property
    def resumed(self) -> str:
        """The run of the leg that resumes."""
        ranks = "rank" if self.before == 1 else "ranks"
        return f"{self.part}, from {self.before} {ranks} to {self.after}"

    @property
    def saved(self) -> str:
        """The run of the leg that saves."""
        return f"saved: {self.resumed}"

    @property
    def emptied(self) -> str:
        """The run of a leg that resumes where the checkpoint was taken away."""
        return f"without any file: {self.resumed}"

    @property
    def legs(self) -> Mapping[str, int]:
        """The number of ranks of the leg that saves, and of the one that resumes, by run."""
        return {self.saved: self.before, self.resumed: self.after}


def is_refused(history: History, move: Move) -> bool:
    """Whether some rank raised in the resuming call."""
    return bool(raised_in(history, move.resumed))


def opens_nothing(history: History, moves: Sequence[Move]) -> str:
    """Why it is not known that the loop reads its checkpoint; empty if that is known.

    Where the checkpoint is taken away, a loop that reads it raises, or begins as a new one does.
    """
    ends = {_digests(whole) for _, whole in _by_run(history, "end").items()}
    begins = {run: _digests(whole) for run, whole in _by_run(history, "begin").items()}
    for move in moves:
        begun = begins.get(move.emptied)
        if begun is not None and begun in {*ends, begins.get(move.resumed)}:
            return UNREAD
    return ""


def judge_move(history: History, move: Move, size: int, terms: Terms) -> tuple[Violation, ...]:
    """The resumed leg begins with the parameters, and has the samples, that are left; or all ranks
    refuse it.

    Args:
        history: with the run ``whole`` of all ranks, for a loop with ``global_batch``.
        size: number of samples.
        terms: what the loop declares about how often each one comes.
    """
    if is_refused(history, move):
        return tuple(half_refused(history, move.resumed, range(move.after)))
    same_steps = "global_batch" in terms.traits
    return (
        *_other_begin(history, move),
        *(_other_steps(history, move) if same_steps else _uneven(history, move, size, terms)),
    )


def judge_end(history: History, move: Move) -> tuple[Violation, ...]:
    """The resumed leg ends with the whole run's parameters, as far as rounding goes."""
    if is_refused(history, move):
        return ()
    limits: dict[str, float] = {}
    for seen in history:
        if isinstance(seen, LoopRounding):
            limits = {bare_name(name): FACTOR * far for name, far in seen.distances}
    ends = _by_run(history, "end")
    whole, end = ends.get("whole", {}), ends.get(move.resumed, {})
    names = [*whole, *(name for name in end if name not in whole)]
    other = [n for n in names if not _near(whole.get(n), end.get(n), limits.get(n, 0.0))]
    return (
        *(Violation(f"{move.resumed}: ends with another {name}") for name in other[:1]),
        *([] if names else [Violation(f"{move.resumed}: no rank reports final parameters")]),
    )


def _near(one: Sketch | None, other: Sketch | None, limit: float) -> bool:
    if one is None or other is None or one.digest == other.digest:
        return one is not None and other is not None
    limit = max(limit, REORDERED * max(one.norm, other.norm))
    if not math.isfinite(limit):
        return False  # all numbers lie within an infinite limit
    return abs(one.norm - other.norm) <= limit and abs(one.projection - other.projection) <= limit


def _by_run(history: History, when: str) -> dict[str, dict[str, Sketch]]:
    """Parameters by run and bare name, from the first rank that has it: ranks may have different
    parameters.
    """
    found: defaultdict[str, dict[str, Sketch]] = defaultdict(dict)
    records = [r for r in history if isinstance(r, LoopParameters) and r.when == when]
    for record in sorted(records, key=lambda record: record.rank):
        for sketch in record.sketches:
            found[record.run].setdefault(bare_name(sketch.name), sketch)
    return dict(found)


def _digests(whole: Mapping[str, Sketch]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, sketch.digest) for name, sketch in whole.items()))


def _other_begin(history: History, move: Move) -> Iterator[Violation]:
    saved = _by_run(history, "end").get(move.saved, {})
    begins = {
        r.rank: {bare_name(sketch.name): sketch.digest for sketch in r.sketches}
        for r in history
        if isinstance(r, LoopParameters) and (r.run, r.when) == (move.resumed, "begin")
    }
    for rank in range(move.after):
        if rank not in begins:
            yield Violation(f"{move.resumed}: rank {rank} reports no initial parameters")
            continue
        for name, digest in begins[rank].items():
            if name not in saved or saved[name].digest != digest:
                yield Violation(
                    f"{move.resumed}: rank {rank} begins with another {name} than the run had when "
                    "it was saved"
                )
                break
    lost = [name for name in saved if all(name not in begin for begin in begins.values())]
    if lost and begins:
        yield Violation(f"{move.resumed}: no rank begins with {lost[0]}, which the run had")


def _together(history: History, run: str) -> list[tuple[int, tuple[int, ...]]]:
    """The epoch of each step of a run, and the samples of all ranks in order of their numbers."""
    steps: defaultdict[int, list[LoopStep]] = defaultdict(list)
    for own in steps_of(history, run).values():
        for place, step in enumerate(own):
            steps[place].append(step)
    return [
        (made[0].epoch, tuple(sorted(index for step in made for index in step.ids)))
        for _, made in sorted(steps.items())
    ]


def _other_steps(history: History, move: Move) -> Iterator[Violation]:
    wanted = _together(history, "whole")
    got = [step for run in move.legs for step in _together(history, run)]
    if not wanted:
        yield Violation("the loop made no step")
    for place in range(max(len(wanted), len(got))):
        right, made = (_words(steps[place : place + 1]) for steps in (wanted, got))
        if right != made:
            yield Violation(f"{move.resumed}: step {place}: {made}, not {right}")
            return


def _words(steps: Sequence[tuple[int, tuple[int, ...]]]) -> str:
    return f"samples {list(steps[0][1])} in epoch {steps[0][0]}" if steps else "nothing"


def _uneven(history: History, move: Move, size: int, terms: Terms) -> Iterator[Violation]:
    """Epochs in which samples come more often, or more rarely, than is allowed on its ranks."""
    had: defaultdict[int, Counter[int]] = defaultdict(Counter)
    legs: defaultdict[int, list[int]] = defaultdict(list)
    for run, number in move.legs.items():
        for epoch, ids in _together(history, run):
            had[epoch].update(ids)
            legs[epoch] += [number] if number not in legs[epoch] else []
    if not had:
        yield Violation("the loop made no step")
    for epoch, counts in sorted(had.items()) if not terms.traits & UNCOUNTED else ():
        allowed = [loosely(size, terms, number) for number in legs[epoch]]
        more = {i: n - terms.copies for i, n in sorted(counts.items()) if n > terms.copies}
        less = {i: terms.copies - counts[i] for i in range(size) if counts[i] < terms.copies}
        for what, wrong, most in (
            ("often", more, sum(one.surplus for one in allowed)),
            ("rarely", less, sum(one.missing for one in allowed)),
        ):
            if sum(wrong.values()) > most:
                yield Violation(
                    f"{move.resumed}: {len(wrong)} of {size} samples come too {what}, index "
                    f"{next(iter(wrong))} {_times(counts[next(iter(wrong))])}",
                    epoch,
                )


def _times(number: int) -> str:
    return "never" if number == 0 else f"{number} time{'' if number == 1 else 's'}"
