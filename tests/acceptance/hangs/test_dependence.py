"""The table of who depends on whom is that of gloo, as a program without the plugin measures it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_ddp.deadlock.dependence import TABLE, dependence
from tests.unit.standings import collective

PROGRAM = Path(__file__).parent / "whom_gloo_needs.py"


@pytest.fixture(scope="module")
def measured() -> list[dict[str, Any]]:
    """Each wait in each setting."""
    command = ["timeout", "-k", "5", "300", sys.executable, str(PROGRAM)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_waits_need_the_ranks_of_the_table(measured: list[dict[str, Any]]) -> None:
    assert len(measured) > 90
    wrong = [wait for wait in measured if set(wait["needs"]) != by_the_table(wait)]
    assert not wrong


def by_the_table(wait: dict[str, Any]) -> set[int]:
    """Whom a wait needs, of those whose absence was tried."""
    pending = collective(
        1,
        *range(wait["size"]),
        operation=wait["recorded_as"],
        numel=wait["recorded_numel"],
        root=wait["root"] if wait["root"] >= 0 else None,
    )
    needed = dependence(pending, wait["rank"])
    assert needed.on_each, "not in the table"
    return set(needed.ranks) & set(wait["tried"])


def test_each_row_was_measured(measured: list[dict[str, Any]]) -> None:
    names = {wait["recorded_as"] for wait in measured}
    assert all(names & set(row.operations) for row in TABLE)
    assert {wait["numel"] for wait in measured} >= {0, 1, 1 << 20}
