"""Tests of other harnesses on ranks: what such a harness's processes would do, a rank does."""

from __future__ import annotations


def plugins() -> tuple[object, ...]:
    """Plugins of pytest for a rank, one for each kind of harness."""
    from pytest_ddp.rank.adopted.distributedtest import DistributedTests  # noqa: PLC0415
    from pytest_ddp.rank.adopted.testcases import TestCases  # noqa: PLC0415

    return TestCases(), DistributedTests()
