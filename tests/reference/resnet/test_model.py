"""The network: its size, its start and the smallest image it can be trained on."""

from __future__ import annotations

import pytest
import torch
from ddp_reference.resnet.model import ResNet, Stem, smallest_resolution


def test_resnet18_has_its_published_size() -> None:
    model = ResNet(1000, (2, 2, 2, 2), width=64, stem="imagenet")
    assert sum(p.numel() for p in model.parameters()) == 11_689_512


def test_a_fresh_block_is_the_identity_on_positive_input() -> None:
    block = ResNet(2, (1,), width=4, stem="small").stages.get_submodule("0.0")
    x = torch.rand(2, 4, 6, 6)
    torch.testing.assert_close(block(x), x)


@pytest.mark.parametrize("stem", ["small", "imagenet"])
def test_smallest_resolution_trains_on_one_image_and_half_of_it_does_not(stem: Stem) -> None:
    blocks = (1, 1, 1)
    model = ResNet(2, blocks, width=2, stem=stem)
    least = smallest_resolution(blocks, stem)
    model(torch.zeros(1, 3, least, least))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        model(torch.zeros(1, 3, least // 2, least // 2))


@pytest.mark.parametrize("values", [(0, (1,), 4), (2, (1, 0), 4), (2, (1,), 0)])
def test_sizes_below_one_are_refused(values: tuple[int, tuple[int, ...], int]) -> None:
    classes, blocks, width = values
    with pytest.raises(ValueError, match="at least 1"):
        ResNet(classes, blocks, width, "small")
