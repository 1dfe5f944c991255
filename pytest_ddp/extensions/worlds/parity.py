"""Judges whether a world's values are those of the reference, but for rounding. Pure.

The limit of a tensor is :data:`FACTOR` times the largest difference that the further runs of the
reference have made in it, or :data:`FLOOR` eps of its largest value if that is more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_ddp.extensions.worlds.ranks.world_records import Deviation, Table, TensorPlace

FACTOR = 4.0
"""Wrong programs reach 12 at least, and right ones seldom 4: docs/parity.md has the ratios."""
ROUNDING_RUNS = 3
"""Further runs with rounding, of whose largest difference that is a multiple."""
FLOOR = 64.0
_SHRUNK = 1e-9
"""The limit in float64: what right programs differ by is below it, relative to the largest value;
wrong ones differ by 1e-3 or more."""
_SHRINKS = 1e-3
"""A difference that is rounding is this much smaller in float64, at least."""
_NATURAL = 1 / 8
"""What rounding itself makes, at most, as a share of a difference by rounding that is enlarged 16
times."""
_SHOWN = 8
"""Rows of the table in a failure."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor of a world, with what rounding makes of the reference's."""

    place: TensorPlace
    distance: Deviation
    rounding: float
    """The largest difference of the reference's further runs."""

    @property
    def allowed(self) -> float:
        """What counts as rounding: some eps of the largest value, if no run has made more of it."""
        return max(self.rounding, FLOOR / FACTOR * self.distance.eps * self.distance.largest)

    @property
    def ratio(self) -> float:
        """The error in multiples of rounding; above :data:`FACTOR` it is beyond the limit."""
        if self.allowed == 0 or math.isinf(self.distance.error):
            return math.inf if self.distance.error else 0.0
        return self.distance.error / self.allowed


def compare(table: Table, further: Sequence[Table]) -> list[Comparison]:
    """Hold each tensor of a world against the further runs of the reference."""
    return [Comparison(place, found, rounding_of(place, further)) for place, found in table.items()]


def rounding_of(place: TensorPlace, further: Iterable[Table]) -> float:
    """The largest difference that these runs have made in a tensor.

    A run whose value is infinitely far, such as NaN, tells nothing.
    """
    errors = (table[place].error for table in further if place in table)
    return max((error for error in errors if math.isfinite(error)), default=0.0)


def beyond(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Tensors that deviate by more than the limit."""
    return [one for one in comparisons if one.ratio > FACTOR]


def is_reached(found: Comparison, more: Sequence[Table]) -> bool:
    """Whether a run with rounding has made a difference as large as that of the world."""
    return found.distance.error <= rounding_of(found.place, more)


def unrepeated(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """The comparisons of a repeated run whose difference is more than rounding makes, which is not
    enlarged there.
    """
    return [
        one
        for one in comparisons
        if one.distance.error > FLOOR * one.distance.eps * one.distance.largest
        and one.distance.error > _NATURAL * one.rounding
    ]


def is_rounding_in_float64(found: Comparison, wide: Deviation) -> bool:
    """Whether a difference that is beyond the limit shrinks in float64 as rounding does."""
    is_small = wide.error <= _SHRUNK * max(1.0, wide.largest)
    return is_small and wide.error <= _SHRINKS * found.distance.error


@dataclass(slots=True)
class Judged:
    """How far a world was from the reference, by each limit that it was held against."""

    stages: dict[str, list[Comparison]] = field(default_factory=dict)
    """All tensors, by what the limit was taken from: :data:`STAGES`, as far as was needed."""
    wrong: list[Comparison] = field(default_factory=list)
    """The comparisons by which the world is wrong in the end."""


STAGES = ("eps", "rounding", "more rounding", "float64")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with a world."""

    comparisons: tuple[Comparison, ...]
    """All of the world."""
    wrong: tuple[Comparison, ...]
    wide: Mapping[TensorPlace, Deviation] | None
    """The differences in float64; None if there was no such run."""
    why_not_wide: str
    chancy: tuple[str, ...]
    """Modules in training mode with dropout or batch statistics."""
    is_disturbed: bool
    """Whether the runs with rounding had an operator to disturb."""
    more: Sequence[Table] = ()
    """The further runs, of which half had rounding four times as large."""


def texts(verdict: Verdict, world: str, reference: str) -> Iterator[tuple[str, int, str]]:
    """The failure of each comparison with a wrong tensor, by name and number."""
    for name, number in dict.fromkeys((one.place.name, one.place.number) for one in verdict.wrong):
        key = name, number
        wrong = [one for one in verdict.wrong if (one.place.name, one.place.number) == key]
        mine = [one for one in verdict.comparisons if (one.place.name, one.place.number) == key]
        lines = _lines(verdict, wrong, mine, world, reference)
        yield name, number, "\n".join(lines)


def _lines(
    verdict: Verdict,
    wrong: list[Comparison],
    mine: list[Comparison],
    world: str,
    reference: str,
) -> Iterator[str]:
    worst = max(wrong, key=lambda one: one.ratio)
    place = worst.place
    which = f" (call {place.number + 1})" if place.number else ""
    named = f": {place.tensor}" if place.tensor else ""
    yield f"{place.name}{which}{named} in world {world} is not that of world {reference}"
    multiple = ""
    if verdict.is_disturbed and math.isfinite(worst.ratio):
        multiple = f", {worst.ratio:,.3g} times what rounding does there ({worst.allowed:.3g})"
    yield f"  it differs {_far(worst.distance)}{multiple};"
    yield f"  the largest value is {worst.distance.largest:.3g}"
    if not verdict.is_disturbed:
        yield "  rounding could not be measured, as no operator of torch was seen (compiled code,"
        yield "  own kernels): give rtol= and atol=, or exact=True"
    if verdict.more:
        yield (
            f"  {len(verdict.more)} more runs, half of them with four times that rounding, reach "
            f"{rounding_of(place, verdict.more):.3g}"
        )
    wide = None if verdict.wide is None else verdict.wide.get(place)
    if wide is not None:
        yield "  in float64 it stays" + (f": {wide.error:.3g}" if math.isfinite(wide.error) else "")
    else:
        yield "  no run in float64 could confirm it:"
        yield f"  {verdict.why_not_wide}"
    if len(mine) > 1:
        yield f"  {len(wrong)} of {len(mine)} tensors are beyond the limit, a ratio of {FACTOR:g}:"
        yield from _table(mine)
    if verdict.chancy:
        yield (
            "  in training mode, where worlds may rightly differ: "
            + ", ".join(verdict.chancy[:_SHOWN])
        )


def _far(one: Deviation) -> str:
    return f"by {one.error:.3g}" if math.isfinite(one.error) else "in values that are not finite"


def _table(comparisons: list[Comparison]) -> Iterator[str]:
    ordered = sorted(comparisons, key=lambda one: -one.ratio)
    yield f"  {'ratio':>9}  {'error':>9}  {'rounding':>9}  tensor"
    for one in ordered[:_SHOWN]:
        cells = f"{one.ratio:9.3g}  {one.distance.error:9.3g}  {one.allowed:9.3g}"
        yield f"  {cells}  {one.place.tensor or '(the value)'}"
    if len(ordered) > _SHOWN:
        yield f"  and {len(ordered) - _SHOWN} more with smaller ratios"
