"""Comparisons of a rank alone: what the reference may write."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_ddp.extensions.worlds.ranks import across
from pytest_ddp.extensions.worlds.ranks.world_records import WorldRun


def test_a_record_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(across, "_LARGEST_RECORD", 100)
    found = across.AcrossWorlds(0, lambda value: [value])
    found.begin(WorldRun("reference", "one", "one", str(tmp_path), "reference"))
    found.assert_close("x", torch.ones(20))
    with pytest.raises(AssertionError, match=r"^y: the reference's values are more than 1 GiB on"):
        found.assert_close("y", torch.ones(20))
