"""Declarations under which a subject that breaks SMP-01 would be legal, for its failure text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ddp_conformance.framework.history import Run
from ddp_conformance.sampling.deliveries import Delivering
from ddp_conformance.sampling.history import EpochEnd, Sample

_SHARES = frozenset({"exact", "pads", "drops"})
_STRICT = frozenset({"exact", "evaluates"})
"""Traits that contradict ``replacement``, ``endless`` and copies."""

MOST_OF_DRAWS = 0.85
"""Most distinct samples, relative to n, that n draws with replacement have; 0.63 on average."""


def declarations(subject: Delivering, runs: Sequence[Run]) -> Iterator[Delivering]:
    """Declarations for which there is evidence, those that allow least first; not judged yet."""
    for options in _options(subject, runs):
        try:
            changed: Delivering = replace(subject, **options)
        except ValueError:
            continue  # it contradicts another declaration
        if changed != subject:
            yield changed


def _options(subject: Delivering, runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Yield the options to try. Copies are none if they are as many as ranks: a part that shares
    out nothing looks the same."""
    other = subject.traits - _SHARES
    for shares in ({"pads"}, {"drops"}):
        yield {"traits": other | shares, "batch_size": 1}
    largest = max(_batches(runs), default=1)
    if largest > 1:
        for shares in ({"drops"}, {"pads", "drops"}, {"pads"}):
            yield {"traits": other | shares, "batch_size": largest}
    copies = _copies(runs)
    if copies not in (1, *(run.case.world_size for run in runs)):
        yield {"traits": subject.traits - _STRICT, "copies": copies}
    if _looks_drawn(runs):
        for shares in (set[str](), {"pads"}, {"drops"}):
            yield {"traits": other - _STRICT | shares | {"replacement"}}
    if any(isinstance(end, EpochEnd) and not end.exhausted for run in runs for end in run.history):
        yield {"traits": subject.traits - _STRICT | {"endless"}}


def _batches(runs: Sequence[Run]) -> Iterator[int]:
    for run in runs:
        samples = [record for record in run.history if isinstance(record, Sample)]
        yield from Counter((s.rank, s.epoch, s.step) for s in samples).values()


def _copies(runs: Sequence[Run]) -> int:
    """Times that each sample comes at the largest size, rounded."""
    run = max(runs, key=lambda one: one.case.size)
    epochs = sum(isinstance(record, EpochEnd) and record.rank == 0 for record in run.history)
    samples = sum(isinstance(record, Sample) for record in run.history)
    return round(samples / (run.case.size * max(epochs, 1)))


def _looks_drawn(runs: Sequence[Run]) -> bool:
    """Whether a rank has a sample twice, and far fewer samples come than are drawn.

    Ranks that shuffle apart have the same samples, but each of them once.
    """
    run = max(runs, key=lambda one: one.case.size)
    drawn = [(s.epoch, s.index, s.rank) for s in run.history if isinstance(s, Sample)]
    distinct = len({(epoch, index) for epoch, index, _ in drawn})
    return len(set(drawn)) < len(drawn) and distinct < MOST_OF_DRAWS * len(drawn)


def in_words(declared: Delivering) -> str:
    """The declaration as code."""
    traits = f"traits={{{', '.join(map(repr, sorted(declared.traits)))}}}"
    rest = [
        f"{name}={number}"
        for name, number in (("batch_size", declared.batch_size), ("copies", declared.copies))
        if number > 1
    ]
    return f"{type(declared).__name__}(..., {', '.join([traits, *rest])})"
