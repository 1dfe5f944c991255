"""The texts of failed asserts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pytest_ddp.rank.alike.closeness import Distance, Tolerance
    from pytest_ddp.rank.alike.leaves import Summary

_WIDTH = 60
"""Characters of a value that are shown: eight ranks' values fit on a screen."""
_NAMES = 4
_DIGITS = {torch.float32: 9, torch.complex64: 9, torch.float64: 17, torch.complex128: 17}
"""Digits by dtype; enough to tell two neighbouring values apart."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def failure(assertion: str, name: str, text: str, differing: Sequence[str], total: int) -> str:
    """The whole text; its first line is shown in pytest's short summary."""
    more = ""
    if total > 1:
        named = ", ".join(other or "value" for other in differing[:_NAMES])
        rest = ", ..." if len(differing) > _NAMES else ""
        more = f"\n\n{len(differing)} of {total} entries differ: {named}{rest}"
    head, _, below = text.partition("\n") if text.startswith("[") else ("", "", text)
    return f"ddp.{assertion}: the ranks differ at {name or 'value'}{head}\n\n{below}{more}"


def by_rank(groups: Sequence[tuple[Sequence[int], str]]) -> str:
    """A line for each group of ranks."""
    named = [(_ranks(ranks), text) for ranks, text in groups]
    width = max(len(ranks) for ranks, _ in named)
    return "\n".join(f"  {ranks:{width}}  {text}" for ranks, text in named)


def of_values(groups: Sequence[Sequence[int]], shown: Sequence[str]) -> str:
    """A line for each group of ranks, cut to where the values begin to differ."""
    first = min(_common(shown[ranks[0]], shown[other[0]]) for ranks in groups for other in groups)
    start = 0 if max(map(len, shown)) <= _WIDTH else max(0, first - _WIDTH // 3)
    return by_rank([(ranks, _cut(shown[ranks[0]], start)) for ranks in groups])


def element(summary: Summary, shape: tuple[int, ...], place: int, values: str, count: int) -> str:
    """The first element that differs, with its values."""
    below = f"\n\n{_what(summary)}"
    if count and shape:
        below += f"; {count} of {torch.Size(shape).numel()} elements differ"
    return f"{index(shape, place)}\n{values}{below if shape else ''}"


def distant(
    summary: Summary,
    shape: tuple[int, ...],
    reference: int,
    found: Mapping[int, Distance],
    limits: Tolerance,
) -> str:
    """The first element of each rank that is too far from the reference's, and the distance."""
    lines = []
    size = torch.Size(shape).numel()
    for rank, distance in found.items():
        if distance.count:
            place = index(shape, distance.index)
            values = f"{distance.here}, not {distance.there} as on rank {reference}"
            lines.append(f"  rank {rank}{' at ' + place if place else ''}: {values}")
            lines.append(f"    {distance.count} of {size} too far, by {distance.greatest:.3g}")
    allowed = f"allowed: {limits.atol:g} absolute, {limits.rtol:g} relative"
    return "\n".join([*lines, "", f"{_what(summary)}; {allowed}"])


def equal_values(groups: Sequence[tuple[Sequence[int], str]]) -> str:
    """The text for values that should differ and do not."""
    first, *_ = groups
    lines = [f"  {_ranks(ranks)}  {text}" for ranks, text in groups]
    return "\n".join([f"ddp.assert_differ: {_ranks(first[0])} have the same value", "", *lines])


def index(shape: tuple[int, ...], place: int) -> str:
    """``[3, 17]``; empty for a scalar."""
    if not shape:
        return ""
    places = torch.unravel_index(torch.tensor(place, device="cpu"), shape)
    return f"[{', '.join(str(int(number)) for number in places)}]"


def number(element: torch.Tensor) -> str:
    """An element, with enough digits to tell it from any other value."""
    if not (element.is_floating_point() or element.is_complex()):
        return str(element.item())
    return format(element.item(), f".{_DIGITS[element.dtype]}g")


def short(value: Any) -> str:
    """A value on one line."""
    return _cut(" ".join(of(value).split()), 0)


def of(value: Any) -> str:
    """A value's repr; its attributes, where the repr would be its address."""
    own: Any = type(value).__repr__
    if own is object.__repr__ and hasattr(value, "__dict__"):
        return f"{type(value).__qualname__}({vars(value)})"
    return _ADDRESS.sub("", repr(value))


def _what(summary: Summary) -> str:
    return f"{summary.name or 'value'} is {summary.kind}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _common(one: str, other: str) -> int:
    """The length of the texts' common beginning."""
    pairs = zip(one, other, strict=False)
    least = min(len(one), len(other))
    return next((place for place, (a, b) in enumerate(pairs) if a != b), least)


def _cut(text: str, start: int) -> str:
    before, after = "..." * (start > 0), "..." * (len(text) > start + _WIDTH)
    return f"{before}{text[start : start + _WIDTH]}{after}"
