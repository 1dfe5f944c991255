"""Samples for metrics, and what a single process reports for them, worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from ddp_conformance.metrics.subjects import sample_value
from torch import Tensor

CLASSES = 3

# ---------------------------------------------------------------- samples


def guess(index: int) -> float:
    """A number that follows the sample's value, not closely."""
    return sample_value(index) / 2 + index % 3


def label(index: int) -> int:
    return index % CLASSES


def guessed_label(index: int) -> int:
    """Right for three samples of four, but for the first class of five."""
    return label(index) if index % 4 else index % 2


def score(index: int) -> float:
    """The score of the first class against the others: 97 numbers in (0, 1)."""
    return ((13 * index + 5) % 97 + 0.5) / 97


def labels(indices: Sequence[int]) -> tuple[Tensor, Tensor]:
    return torch.tensor([guessed_label(i) for i in indices]), torch.tensor(
        list(map(label, indices))
    )


def numbers(indices: Sequence[int]) -> tuple[Tensor, Tensor]:
    return torch.tensor(list(map(guess, indices))), torch.tensor(list(map(sample_value, indices)))


def scores(indices: Sequence[int]) -> tuple[Tensor, Tensor]:
    return torch.tensor(list(map(score, indices))), torch.tensor([i % 2 for i in indices])


def words(indices: Sequence[int]) -> tuple[list[str], list[str]]:
    """Sentences twice, of one word and more; the first lacks the number where it is odd."""
    said = [" ".join(["word"] * (1 + i % 3)) for i in indices]
    return [text if i % 2 else f"{text} {i}" for i, text in zip(indices, said, strict=True)], [
        f"{text} {i}" for i, text in zip(indices, said, strict=True)
    ]


# ---------------------------------------------------------------- right values


def right_share(indices: Sequence[int]) -> float:
    return sum(guessed_label(i) == label(i) for i in indices) / len(indices)


def f1_of(indices: Sequence[int], one: int) -> float | None:
    """None for a class that is neither there nor guessed."""
    hits = sum(guessed_label(i) == label(i) == one for i in indices)
    named = sum((guessed_label(i) == one) + (label(i) == one) for i in indices)
    return 2 * hits / named if named else None


def macro_f1(indices: Sequence[int]) -> float:
    found = [f1 for one in range(CLASSES) if (f1 := f1_of(indices, one)) is not None]
    return sum(found) / len(found)


def confusion(indices: Sequence[int]) -> list[int]:
    pairs = [(label(i), guessed_label(i)) for i in indices]
    return [pairs.count((right, said)) for right in range(CLASSES) for said in range(CLASSES)]


def squared_error(indices: Sequence[int]) -> float:
    return sum((guess(i) - sample_value(i)) ** 2 for i in indices) / len(indices)


def root_squared_error(indices: Sequence[int]) -> float:
    return math.sqrt(squared_error(indices))


def absolute_error(indices: Sequence[int]) -> float:
    return sum(abs(guess(i) - sample_value(i)) for i in indices) / len(indices)


def total(indices: Sequence[int]) -> float:
    return sum(map(sample_value, indices))


def largest(indices: Sequence[int]) -> float:
    return max(map(sample_value, indices))


def smallest(indices: Sequence[int]) -> float:
    return min(map(sample_value, indices))


def word_errors(indices: Sequence[int]) -> float:
    return sum(i % 2 for i in indices) / sum(2 + i % 3 for i in indices)


def area(indices: Sequence[int], undefined: float = 0.0) -> float:
    """The share, among all pairs of a positive and a negative sample, of those in the right order;
    ties are half.

    Libraries differ in what they report where there are no pairs: ``undefined``.
    """
    positive = [score(i) for i in indices if i % 2]
    negative = [score(i) for i in indices if not i % 2]
    pairs = len(positive) * len(negative)
    right = sum((p > n) + (p == n) / 2 for p in positive for n in negative)
    return right / pairs if pairs else undefined


def correlation(indices: Sequence[int]) -> float:
    left, right = list(map(guess, indices)), list(map(sample_value, indices))
    x, y = sum(left) / len(left), sum(right) / len(right)
    covariance = sum((a - x) * (b - y) for a, b in zip(left, right, strict=True))
    spread = math.sqrt(sum((a - x) ** 2 for a in left) * sum((b - y) ** 2 for b in right))
    return covariance / spread if spread else math.nan


def mean(indices: Sequence[int]) -> float:
    return total(indices) / len(indices)
