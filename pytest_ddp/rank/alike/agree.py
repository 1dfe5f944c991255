"""The asserts: compare digests first, then find what differs, then show the values there.

Each exchange depends only on what all ranks have received before, so that all ranks take part in
the same exchanges, and fail with the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from pytest_ddp.rank.alike import closeness, tensors, texts
from pytest_ddp.rank.alike.closeness import Tolerance
from pytest_ddp.rank.alike.leaves import Leaf, Summary, digest, leaves

Gather = Callable[[Any], list[Any]]
"""Every rank's object in rank order, on every rank."""
Cells = list[Summary | None]
"""A leaf's summary on each rank; None where the rank has no such leaf."""


def assert_same(gather: Gather, rank: int, value: Any) -> None:
    """See :meth:`pytest_ddp.Ddp.assert_same`."""
    found = leaves(value)
    for name, cells, differing, total in _differences(gather, found):
        leaf = next((leaf for leaf in found if leaf.summary.name == name), None)
        text = _unlike(cells) or _unequal(gather, rank, cells, leaf)
        if text:
            raise AssertionError(texts.failure("assert_same", name, text, differing, total))


def assert_close(gather: Gather, rank: int, value: Any, tolerance: Tolerance | None) -> None:
    """See :meth:`pytest_ddp.Ddp.assert_close`."""
    found = leaves(value)
    for name, cells, differing, total in _differences(gather, found):
        leaf = next((leaf for leaf in found if leaf.summary.name == name), None)
        text = _unlike(cells)
        if not text and leaf is not None and leaf.summary.is_tensor:
            text = _distant(gather, rank, cells, leaf, tolerance)
        elif not text:
            text = _unequal(gather, rank, cells, leaf)
        if text:
            raise AssertionError(texts.failure("assert_close", name, text, differing, total))


def assert_differ(gather: Gather, value: Any) -> None:
    """See :meth:`pytest_ddp.Ddp.assert_differ`."""
    owners: dict[bytes, list[int]] = {}
    for rank, found in enumerate(gather(digest(leaves(value)))):
        owners.setdefault(found, []).append(rank)
    equal = [ranks for ranks in owners.values() if len(ranks) > 1]
    if equal:
        shown = gather(texts.short(value))
        raise AssertionError(texts.equal_values([(ranks, shown[ranks[0]]) for ranks in equal]))


def _differences(gather: Gather, found: list[Leaf]) -> Iterator[tuple[str, Cells, list[str], int]]:
    """Each leaf that differs, as name and cells, with all such names and the number of leaves."""
    if len(set(gather(digest(found)))) == 1:
        return
    received = gather([leaf.summary for leaf in found])
    tables = [{summary.name: summary for summary in summaries} for summaries in received]
    names = list(dict.fromkeys(name for table in tables for name in table))
    rows = {name: [table.get(name) for table in tables] for name in names}
    differing = [name for name, cells in rows.items() if _unlike(cells) or _groups(cells)]
    for name in differing:
        yield name, rows[name], differing, len(names)


def _unlike(cells: Cells) -> str:
    """A text, if ranks have leaves of different kinds, or some have none; else empty."""
    kinds = [None if cell is None else cell.kind for cell in cells]
    if len(set(kinds)) == 1:
        return ""
    shown = [kind or "nothing" for kind in kinds]
    return texts.by_rank([(ranks, shown[ranks[0]]) for ranks in _grouped(shown)])


def _groups(cells: Cells) -> list[list[int]]:
    """Groups of ranks that should hold the same values, and do not."""
    shares: dict[tuple[int, ...], list[int]] = {}
    for rank, cell in enumerate(cells):
        if cell is not None:
            shares.setdefault(cell.share, []).append(rank)
    digests = [None if cell is None else cell.digest for cell in cells]
    return [ranks for ranks in shares.values() if len({digests[rank] for rank in ranks}) > 1]


def _unequal(gather: Gather, rank: int, cells: Cells, leaf: Leaf | None) -> str:
    """A text with the values of a leaf of one kind; empty if they turn out to be equal."""
    assert leaf is not None
    if leaf.summary.is_tensor:
        return _first_element(gather, rank, _groups(cells)[0], leaf)
    present = [cell for cell in cells if cell is not None]
    opaque = leaf.value is not None
    groups = _grouped(gather(leaf.value) if opaque else [cell.digest for cell in present])
    return texts.of_values(groups, [cell.text for cell in present]) if len(groups) > 1 else ""


def _grouped(values: list[Any]) -> list[list[int]]:
    """Groups of ranks with equal values."""
    groups: list[list[int]] = []
    for rank, value in enumerate(values):
        for group in groups:
            if bool(value == values[group[0]]):
                group.append(rank)
                break
        else:
            groups.append([rank])
    return groups


def _first_element(gather: Gather, rank: int, ranks: list[int], leaf: Leaf) -> str:
    chunks = list(tensors.chunks(leaf.value))
    number = _differing(gather(leaf.digests), ranks)[0]
    sent = gather(tensors.plain(chunks[number]) if rank in ranks else None)
    values = [sent[other] for other in ranks]
    wrong = torch.stack([~closeness.equal(value, values[0]) for value in values]).any(0)
    index = int(wrong.nonzero()[0])
    numbers = [texts.number(value[index]) for value in values]
    shown = [([ranks[i] for i in group], numbers[group[0]]) for group in _grouped(numbers)]
    # Only with a single chunk have all elements been compared.
    count = int(wrong.sum()) if len(chunks) == 1 else 0
    place = number * tensors.CHUNK + index
    values_text = texts.by_rank(shown)
    return texts.element(leaf.summary, tuple(leaf.value.shape), place, values_text, count)


def _differing(digests: list[bytes], ranks: list[int]) -> list[int]:
    """Numbers of the chunks in which a rank differs from the first rank."""
    pairs = (tensors.differing(digests[ranks[0]], digests[rank]) for rank in ranks[1:])
    return sorted({number for pair in pairs for number in pair})


def _distant(
    gather: Gather, rank: int, cells: Cells, leaf: Leaf, tolerance: Tolerance | None
) -> str:
    """A text, if elements are too far from those of the first rank with the same share."""
    limits = tolerance or Tolerance.of(leaf.value.dtype)
    digests = gather(leaf.digests)
    chunks = list(tensors.chunks(leaf.value))
    for ranks in _groups(cells):
        worst = closeness.Worst(limits)
        for number in _differing(digests, ranks):
            mine = tensors.plain(chunks[number]) if rank in ranks else None
            sent = gather(mine if rank == ranks[0] else None)[ranks[0]]
            if mine is not None:
                worst.look(mine, sent, number * tensors.CHUNK)
        found = dict(enumerate(gather(worst.found)))
        if any(distance.count for distance in found.values()):
            shape = tuple(leaf.value.shape)
            return texts.distant(leaf.summary, shape, ranks[0], found, limits)
    return ""
