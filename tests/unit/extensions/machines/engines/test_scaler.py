"""What is read in the words of ``ray status``, which were recorded of Ray 2.60."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddp.extensions.machines.engines import scaler
from pytest_ddp.extensions.machines.engines.scaler import coming

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
def test_nodes_on_their_way_are_shown_in_ray_s_words(pending: str, words: str | None) -> None:
    expected = "cpu, 1 launching, 10.0.0.2: cpu, setting-up" if words is None else words
    assert coming(SAID.format(pending=pending), KNOWN) == expected


@pytest.mark.parametrize("said", ["", "No cluster status. It may take a few seconds."])
def test_other_words_are_no_sign(said: str) -> None:
    assert coming(said, KNOWN) == ""


def test_a_wait_shows_a_node_on_its_way_by_each_of_its_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray calls it by another one from moment to moment; and once it is there, not at all."""
    groups = SimpleNamespace(
        placement_group=lambda *_: "a group", remove_placement_group=lambda _: None
    )
    monkeypatch.setitem(sys.modules, "ray.util.placement_group", groups)
    moments = iter((" (no pending nodes)", " worker, 1 launching", " ff02: worker, uninitialized"))
    monkeypatch.setattr(scaler, "status", lambda: SAID.format(pending=next(moments)))
    monkeypatch.setattr(scaler, "_LOOK", 0.0)
    # Once before the first look, and once for each of the three.
    there: list[list[dict[str, Any]]] = [*itertools.repeat(KNOWN, 4), [*KNOWN, {"NodeID": "ff02"}]]
    looks = iter(there)
    shown: list[str] = []
    assert scaler.ScalerWait(2, with_ours=True, show=shown.append).until(lambda: next(looks)) == ""
    assert shown == [
        f"1 of 2 machines are in the Ray cluster; {more}"
        for more in (
            "more are requested from its autoscaler",
            "worker, 1 launching",
            "ff02: worker, uninitialized",
        )
    ]
