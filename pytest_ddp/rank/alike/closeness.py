"""How far elements are apart, in the sense of ``torch.testing.assert_close``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pytest_ddp.rank.alike import texts

_DEFAULTS = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
"""torch's documented tolerances, relative and absolute."""


@dataclass(frozen=True)
class Tolerance:
    """Tolerances in ``|a - b| <= atol + rtol * |b|``."""

    rtol: float
    atol: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> Tolerance:
        """torch's default for a dtype."""
        return cls(*_DEFAULTS.get(dtype, (0.0, 0.0)))


@dataclass(frozen=True)
class Distance:
    """How far a rank's elements are from another rank's."""

    count: int = 0
    """Number of elements that are too far."""
    index: int = 0
    """Index of the first of them, in the flattened tensor."""
    here: str = ""
    there: str = ""
    greatest: float = 0.0
    """Largest difference of any of them."""


class Worst:
    """Finds the distance of a tensor from another, chunk by chunk."""

    def __init__(self, limits: Tolerance) -> None:
        self._limits = limits
        self.found = Distance()

    def look(self, mine: torch.Tensor, theirs: torch.Tensor, start: int) -> None:
        """Compare a chunk whose first element has the index ``start``."""
        here, there = _wide(mine), _wide(theirs)
        difference = (here - there).abs()
        allowed = self._limits.atol + self._limits.rtol * there.abs()
        # Integers are never "close": with their tolerance of 0, only the exact test counts, as
        # large ones lose digits in a float.
        close = (difference <= allowed) & (allowed > 0) & there.isfinite()
        wrong = ~(equal(mine, theirs) | close)
        if not bool(wrong.any()):
            return
        known, index = self.found, int(wrong.nonzero()[0])
        first = (start + index, texts.number(mine[index]), texts.number(theirs[index]))
        if known.count:
            first = known.index, known.here, known.there
        # The difference of a NaN is NaN, which max() would not order: count it as infinite.
        far = difference[wrong].nan_to_num(float("inf")).max().item()
        count = known.count + int(wrong.sum())
        self.found = Distance(count, *first, max(known.greatest, far))


def equal(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Element by element, with NaN equal to NaN."""
    return (one == other) | ((one != one) & (other != other))


def _wide(chunk: torch.Tensor) -> torch.Tensor:
    return chunk.to(torch.complex128 if chunk.is_complex() else torch.float64)
