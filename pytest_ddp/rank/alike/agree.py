"""The asserts: digests first, then where they differ, then the values there.

Whatever is exchanged next follows from what all ranks know, so that all of them take part in it,
and fail with the same text.
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
"""A leaf as each rank has it; None where it is not there."""


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
    alike = [ranks for ranks in owners.values() if len(ranks) > 1]
    if alike:
        shown = gather(texts.short(value))
        raise AssertionError(texts.alike([(ranks, shown[ranks[0]]) for ranks in alike]))


def _differences(gather: Gather, found: list[Leaf]) -> Iterator[tuple[str, Cells, list[str], int]]:
    """Each leaf that is not the same everywhere, with the names of all such, and of how many."""
    if len(set(gather(digest(found)))) == 1:
        return
    tables = [{s.name: s for s in told} for told in gather([leaf.summary for leaf in found])]
    names = list(dict.fromkeys(name for table in tables for name in table))
    rows = {name: [table.get(name) for table in tables] for name in names}
    differing = [name for name, cells in rows.items() if _unlike(cells) or _groups(cells)]
    for name in differing:
        yield name, rows[name], differing, len(names)


def _unlike(cells: Cells) -> str:
    """A text where ranks have something of another kind, or nothing."""
    kinds = [None if cell is None else cell.kind for cell in cells]
    if len(set(kinds)) == 1:
        return ""
    told = [kind or "nothing" for kind in kinds]
    return texts.by_rank([(ranks, told[ranks[0]]) for ranks in _grouped(told)])


def _groups(cells: Cells) -> list[list[int]]:
    """Ranks that should hold the same values, and do not."""
    shares: dict[tuple[int, ...], list[int]] = {}
    for rank, cell in enumerate(cells):
        if cell is not None:
            shares.setdefault(cell.share, []).append(rank)
    digests = [None if cell is None else cell.digest for cell in cells]
    return [ranks for ranks in shares.values() if len({digests[rank] for rank in ranks}) > 1]


def _unequal(gather: Gather, rank: int, cells: Cells, leaf: Leaf | None) -> str:
    """A text with the values of a leaf that is of one kind; empty if they are equal after all."""
    assert leaf is not None
    if leaf.summary.is_tensor:
        return _first_element(gather, rank, _groups(cells)[0], leaf)
    present = [cell for cell in cells if cell is not None]
    opaque = leaf.value is not None
    groups = _grouped(gather(leaf.value) if opaque else [cell.digest for cell in present])
    return texts.of_values(groups, [cell.text for cell in present]) if len(groups) > 1 else ""


def _grouped(values: list[Any]) -> list[list[int]]:
    """Ranks with equal values."""
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
    told = [texts.number(value[index]) for value in values]
    shown = [([ranks[i] for i in group], told[group[0]]) for group in _grouped(told)]
    # Of how many elements is known where all of them have been looked at.
    count = int(wrong.sum()) if len(chunks) == 1 else 0
    place = number * tensors.CHUNK + index
    values_text = texts.by_rank(shown)
    return texts.element(leaf.summary, tuple(leaf.value.shape), place, values_text, count)


def _differing(digests: list[bytes], ranks: list[int]) -> list[int]:
    """Numbers of the chunks in which a rank differs from the first of the given ones."""
    pairs = (tensors.differing(digests[ranks[0]], digests[rank]) for rank in ranks[1:])
    return sorted({number for pair in pairs for number in pair})


def _distant(
    gather: Gather, rank: int, cells: Cells, leaf: Leaf, tolerance: Tolerance | None
) -> str:
    """A text of ranks whose elements are too far from those of the first that has the same."""
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
