"""Bytes of tensors against a count of each byte."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from pytest_ddp.extensions.portable.extents import Extent, extent_of, overlap, without

BASE = torch.zeros(6, 6, dtype=torch.int16)
VIEWS = {
    "all": BASE,
    "row": BASE[2],
    "column": BASE[:, 2],
    "next column": BASE[:, 3],
    "left": BASE[:, :3],
    "right": BASE[:, 3:],
    "even": BASE.view(-1)[::2],
    "odd": BASE.view(-1)[1::2],
    "transposed": BASE[:3].t(),
    "diagonal": BASE.diagonal(),
    "expanded": BASE[:1].expand(6, 6),
    "windows": BASE.view(-1).unfold(0, 4, 2),
    "bytes": BASE[1].view(torch.uint8),
    "empty": BASE[6:],
    "elsewhere": torch.zeros(6, dtype=torch.int16),
}


def _bytes(tensor: torch.Tensor) -> set[int]:
    size = tensor.element_size()
    places = itertools.product(*map(range, tensor.shape))
    starts = (
        tensor.data_ptr() + size * sum(n * s for n, s in zip(at, tensor.stride(), strict=True))
        for at in places
    )
    return {start + n for start in starts for n in range(size)}


@pytest.mark.parametrize("name", VIEWS)
def test_an_extent_is_the_bytes(name: str) -> None:
    extent = extent_of(VIEWS[name])
    assert extent is not None
    covered = [place for start, end in extent for place in range(start, end)]
    assert covered == sorted(_bytes(VIEWS[name]))


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations_with_replacement(VIEWS, 2)))
def test_overlap_is_a_common_byte(one: str, other: str) -> None:
    shared = bool(_bytes(VIEWS[one]) & _bytes(VIEWS[other]))
    assert overlap(extent_of(VIEWS[one]), extent_of(VIEWS[other])) == shared


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_has_no_memory_or_too_many_pieces_is_unknown() -> None:
    assert extent_of(torch.zeros(3, device="meta")) is None
    assert extent_of(torch.eye(3).to_sparse()) is None
    assert extent_of(torch.nested.nested_tensor([torch.ones(2)])) is None
    assert extent_of(torch.zeros(20_000)[::2]) is None
    assert not overlap(None, extent_of(BASE))


def test_without_is_the_difference_of_sets_of_bytes() -> None:
    chance = random.Random(3)
    for _ in range(500):
        one, other = ({chance.randrange(20) for _ in range(chance.randrange(12))} for _ in "ab")
        assert _places(without(_intervals(one), _intervals(other))) == one - other


def _intervals(places: set[int]) -> Extent:
    return tuple((place, place + 1) for place in sorted(places))


def _places(extent: Extent) -> set[int]:
    return {place for start, end in extent for place in range(start, end)}
