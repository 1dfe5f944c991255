"""A residual network of basic blocks, of any depth and width.

The architecture is that of He, Zhang, Ren and Sun, "Deep Residual Learning for
Image Recognition" (2015): ``blocks=(2, 2, 2, 2), width=64, stem="imagenet"`` is
ResNet-18. The ``"small"`` stem keeps the resolution, for images below about 100 pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

Stem = Literal["small", "imagenet"]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; the first convolution carries the stride."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs, 1)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map float [batch, inputs, h, w] to [batch, outputs, ceil(h/stride), ceil(w/stride)]."""
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def smallest_resolution(blocks: Sequence[int], stem: Stem) -> int:
    """The least pixels a side that leave 2x2 features after the last stage.

    One feature per channel is too few: batch norm in training has no variance to
    compute when the last batch of an epoch holds one image.
    """
    stem_stride = 4 if stem == "imagenet" else 1
    return stem_stride << len(blocks)


class ResNet(nn.Module):
    """Class scores of square or other images of any size.

    ``blocks`` gives the number of blocks per stage; each stage after the first halves
    the resolution and doubles the width. Raises ``ValueError`` for a size below 1.
    """

    def __init__(self, num_classes: int, blocks: Sequence[int], width: int, stem: Stem) -> None:
        super().__init__()
        if min(num_classes, width, *blocks) < 1:
            raise ValueError(
                f"num_classes={num_classes}, blocks={tuple(blocks)} and width={width} "
                "must all be at least 1"
            )
        self.stem = _stem(stem, width)
        self.stages = nn.Sequential()
        channels = width
        for number, count in enumerate(blocks):
            outputs = width * 2**number
            self.stages.append(_stage(channels, outputs, count, stride=1 if number == 0 else 2))
            channels = outputs
        self.head = nn.Linear(channels, num_classes)
        self.apply(_initialise)

    def forward(self, images: Tensor) -> Tensor:
        """Map float images [batch, 3, height, width] to scores [batch, num_classes].

        A batch of no images gives scores of shape [0, num_classes].
        """
        features: Tensor = self.stages(self.stem(images))
        scores: Tensor = self.head(features.mean(dim=(2, 3)))
        return scores


def _stem(kind: Stem, width: int) -> nn.Sequential:
    if kind == "small":
        return nn.Sequential(_conv3x3(3, width, 1), nn.BatchNorm2d(width), nn.ReLU())
    return nn.Sequential(
        nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
    )


def _stage(inputs: int, outputs: int, count: int, stride: int) -> nn.Sequential:
    first = BasicBlock(inputs, outputs, stride)
    return nn.Sequential(first, *(BasicBlock(outputs, outputs, 1) for _ in range(count - 1)))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False),
        nn.BatchNorm2d(outputs),
    )


def _conv3x3(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


def _initialise(module: nn.Module) -> None:
    """Start each block as the identity: Goyal et al., "Accurate, Large Minibatch SGD" (2017)."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, BasicBlock):
        nn.init.zeros_(module.norm2.weight)
