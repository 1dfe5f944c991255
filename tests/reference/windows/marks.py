"""Marks of the tests that train with Lightning in this process."""

from __future__ import annotations

import pytest

LIGHTNING_WARNINGS = [
    # Lightning's advice for real data, and its own use of a name that torch retires.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]
