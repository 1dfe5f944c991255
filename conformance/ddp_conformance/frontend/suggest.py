"""``--suggest my_data:make_loader``: which description of a part fits, and what it leaves broken.

A part is checked under each description that its kind allows: what it repeats or leaves out, or
which rank writes. All descriptions declare the traits that only bind a part to more guarantees;
the verdicts on these guarantees show afterwards which of those traits fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ddp_conformance.framework.registry import Check, checks_for
from ddp_conformance.framework.subjects import Subject
from ddp_conformance.frontend.report import Judged
from ddp_conformance.frontend.table import Word
from ddp_conformance.lifecycle.subjects import Training
from ddp_conformance.metrics.subjects import Metric
from ddp_conformance.model.subjects import TrainStep
from ddp_conformance.sampling.subjects import Loader, Sampler, SamplerWrapper
from ddp_conformance.writing.subjects import Writer

BATCH_SIZES = (2, 3, 4, 8, 16, 32)
"""Sizes that are tried for parts that make batches full; the part's own size is not known."""

BY_FACTORY: tuple[type[Subject], ...] = (Loader, Sampler, Metric)
"""Kinds that a factory is tried as: those that need nothing but a factory."""

WORLD_SIZES = (2, 3)

_SHARES: tuple[AbstractSet[str], ...] = ({"exact"}, {"pads"}, {"drops"})

_DESCRIPTIONS: dict[type[Subject], tuple[AbstractSet[str], ...]] = {
    Sampler: _SHARES,
    Loader: _SHARES,
    SamplerWrapper: _SHARES,
    Training: (*_SHARES, {"pads", "drops"}),
    Writer: (set(), {"replaces"}, {"first_wins"}),
    TrainStep: (set(), {"unused_parameters"}),
}
"""Traits by kind; those that allow less come first."""

_METHODS = {
    "Loader": "which is iterable and gives batches",
    "Sampler": "which is iterable and gives indices",
    "Metric": "which has update(), compute() and reset()",
}
"""What the factory of a kind has to return."""

_BINDING = frozenset({"shuffles", "evaluates"})
"""Traits that bind a part to more guarantees, and need nothing of its factory."""


@dataclass(frozen=True)
class Description:
    """A possible description of a part."""

    subject: Subject
    """The part with the traits of this description, and those of :data:`_BINDING`."""
    checks: tuple[Check, ...]
    """The checks to run."""
    is_batched: bool = False
    """True if it differs only in full batches; other guarantees are checked without them."""


def descriptions(subject: Subject) -> tuple[Description, ...]:
    """All descriptions that the subject's kind allows, each with a name of its own."""
    found = [_plain(subject, traits) for traits in _DESCRIPTIONS.get(type(subject), (set(),))]
    if isinstance(subject, Sampler | Loader):
        found += [
            _batched(subject, traits, size)
            for size in BATCH_SIZES
            for traits in ({"drops"}, {"pads", "drops"}, {"pads"})
        ]
    return tuple(found)


def _plain(subject: Subject, traits: AbstractSet[str]) -> Description:
    other = frozenset[str]().union(*_DESCRIPTIONS.get(type(subject), ()))
    binding = _BINDING if isinstance(subject, Sampler | Loader) else frozenset[str]()
    options: dict[str, Any] = {"traits": (subject.traits - other) | traits | binding}
    if isinstance(subject, Sampler | Loader):
        options["batch_size"] = 1
    made = replace(subject, name=_name(subject, traits), **options)
    checks = tuple(check for check in checks_for(made) if check.obstacle(made) is None)
    return Description(made, checks)


def _batched(subject: Sampler | Loader, traits: AbstractSet[str], size: int) -> Description:
    name = _name(subject, traits, f", batch_size={size}")
    made = replace(subject, name=name, traits=frozenset(traits), batch_size=size)
    return Description(made, tuple(c for c in checks_for(made) if c.id == "SMP-01"), True)


def _name(subject: Subject, traits: AbstractSet[str], rest: str = "") -> str:
    listed = f", traits={{{', '.join(map(repr, sorted(traits)))}}}" if traits else ""
    return f"{type(subject).__name__}({subject.name}{listed}{rest})"


# ---------------------------------------------------------------- what came out

Verdicts: TypeAlias = Mapping[tuple[str, str], Judged]
"""The worst verdict of each description and guarantee, over the world sizes."""


def worst(judged: Sequence[Judged]) -> Verdicts:
    """The worst verdict of each description on each guarantee, over the world sizes."""
    order = (Word.PASSED, Word.FAILED, Word.UNKNOWN)
    known = [one for one in judged if one.word in order]
    return {
        (one.subject, one.guarantee): one
        for one in sorted(known, key=lambda one: order.index(one.word))
    }


def suggestion(tried: Sequence[Description], judged: Sequence[Judged]) -> tuple[bool, list[str]]:
    """Whether a description fits, and the lines that show it, or what the closest one breaks."""
    verdicts = worst(judged)
    for one in tried:
        if not _in_the_way(one, verdicts):
            return True, [f"fits: {one.subject.name}", *_besides(one, tried, verdicts)]
    plain = [one for one in tried if not one.is_batched]
    closest = max(plain, key=lambda one: _closeness(one, verdicts))
    if all(_is_of_another_kind(one, verdicts) for one in plain):
        return False, [*_unlike_all(plain, verdicts)]
    return False, [*_reasons(closest, verdicts)]


def _closeness(one: Description, verdicts: Verdicts) -> tuple[float, float]:
    """The share of its guarantees that could be decided, and the share that is kept."""
    words = [verdict.word for _, verdict in _verdicts_of(one, verdicts)]
    decided = [word for word in words if word is not Word.UNKNOWN]
    kept = [word for word in words if word is Word.PASSED]
    return len(decided) / max(len(words), 1), len(kept) / max(len(words), 1)


def _is_of_another_kind(one: Description, verdicts: Verdicts) -> bool:
    """Whether none of its guarantees could be decided."""
    return all(verdict.word is Word.UNKNOWN for _, verdict in _verdicts_of(one, verdicts))


def _unlike_all(tried: Sequence[Description], verdicts: Verdicts) -> Iterator[str]:
    yield "no guarantee of these kinds could be decided:"
    for one in {type(one.subject): one for one in reversed(tried)}.values():
        _, first = _verdicts_of(one, verdicts)[0]
        kind = type(one.subject).__name__
        yield f"  {kind}, {_METHODS.get(kind, 'by its factory')}: {first.reason}"
    yield "for a part of another kind, pass a description of it: WRITER = Writer(make_writer)"


def _verdicts_of(one: Description, verdicts: Verdicts) -> list[tuple[Check, Judged]]:
    found = [(check, verdicts.get((one.subject.name, check.id))) for check in one.checks]
    return [(check, verdict) for check, verdict in found if verdict is not None]


def _in_the_way(one: Description, verdicts: Verdicts) -> list[Judged]:
    """What it breaks whatever further traits it declares, and what could not be decided."""
    return [
        verdict
        for check, verdict in _verdicts_of(one, verdicts)
        if verdict.word is Word.UNKNOWN
        or (verdict.word is Word.FAILED and not check.excused and not check.needs & _BINDING)
    ]


def _besides(one: Description, tried: Sequence[Description], verdicts: Verdicts) -> Iterator[str]:
    """What it keeps, which further traits it needs or may declare, and which it would break."""
    yield from (_line(check, verdict) for check, verdict in _verdicts_of(one, verdicts))
    if one.is_batched:
        # The other guarantees do not depend on what is repeated or left out.
        first = next(other for other in tried if type(other.subject) is type(one.subject))
        for check, verdict in _verdicts_of(first, verdicts):
            if check not in one.checks:
                yield _line(check, verdict)


def _line(check: Check, verdict: Judged) -> str:
    kept = verdict.word is Word.PASSED
    # A part that was checked has come to an end, so that it is not endless.
    bound, excuses = sorted(check.needs & _BINDING), sorted(check.excused - {"endless"})
    if bound:
        words = f"may declare {bound[0]!r}" if kept else f"would break, with {bound[0]!r}"
    else:
        words = "keeps" if kept else f"needs {excuses[0]!r}"
    return f"  {words}: {check.id}{_evidence(verdict)}"


def _reasons(one: Description, verdicts: Verdicts) -> Iterator[str]:
    """All that it breaks, and all that could not be decided."""
    yield f"no description fits; the closest is {one.subject.name}"
    for check, verdict in _verdicts_of(one, verdicts):
        if verdict.word is not Word.PASSED and not check.needs & _BINDING:
            excuse = f" (does not bind {min(check.excused)!r})" if check.excused else ""
            word = verdict.word.lower()
            yield f"  {verdict.guarantee} {word}{excuse}{_evidence(verdict)}"


def _evidence(verdict: Judged) -> str:
    if verdict.word is Word.PASSED:
        return ""
    return f": {verdict.witness[0] if verdict.witness else verdict.reason}"
