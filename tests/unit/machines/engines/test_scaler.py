"""What is read in the words of ``ray status``, which were recorded of Ray 2.60."""

from __future__ import annotations

import pytest

from pytest_ddp.machines.engines.scaler import coming

SAID = """======== Autoscaler status: 2026-11-24 19:11:33.660532 ========
Node status
---------------------------------------------------------------
Active:
 (no active nodes)
Pending:
{pending}
Recent failures:
 (no failures)

Resources
---------------------------------------------------------------
Pending Demands:
 {{'CPU': 1.0}} * 3 (STRICT_SPREAD): 1+ pending placement groups
"""
KNOWN = [{"NodeID": "ff01", "NodeManagerAddress": "10.0.0.1"}]


@pytest.mark.parametrize(
    ("pending", "words"),
    [
        (" (no pending nodes)", ""),
        (" cpu, 2 launching", "cpu, 2 launching"),
        (" cpu, 1 launching\n 10.0.0.2: cpu, setting-up", None),
        (" 10.0.0.1: cpu, setting-up", ""),
        (" ff01: cpu, uninitialized", ""),
    ],
)
def test_nodes_on_their_way_are_told_in_ray_s_words(pending: str, words: str | None) -> None:
    expected = "cpu, 1 launching, 10.0.0.2: cpu, setting-up" if words is None else words
    assert coming(SAID.format(pending=pending), KNOWN) == expected


@pytest.mark.parametrize("said", ["", "No cluster status. It may take a few seconds."])
def test_other_words_are_no_sign(said: str) -> None:
    assert coming(said, KNOWN) == ""
