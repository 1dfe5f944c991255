"""Plans the runs of a world, in the pytest process.

A world that is not the reference:

1. The reference, unless it has run in this process. If it fails, the world is an error of one line;
   if it is skipped, the world is skipped.
2. The world. What it compares is measured, and not judged yet.
3. Only if a tensor differs by more than the least limit: the reference once more as it is, which
   must repeat itself, and :data:`ROUNDING_RUNS` times with rounding.
4. Only if a tensor is beyond the limit then: :data:`_MORE_ROUNDING` runs more, since a branch that
   flips rarely may not have flipped in the first. What one of them reaches is rounding; it is no
   new limit, since in half of them rounding is larger. Then reference and world in float64: a
   difference that shrinks there was rounding.
5. Only if one is still beyond: the world again, in which that comparison fails at its line.

What 1, 3 and the reference's half of 4 have shown is kept for the other worlds of the test.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from pytest_ddp.extensions.worlds import EXTENSION, PARAMETER, parity
from pytest_ddp.extensions.worlds.parity import ROUNDING_RUNS, Comparison, Judged, Verdict
from pytest_ddp.extensions.worlds.ranks.world_records import (
    Deviation,
    RankTable,
    TensorPlace,
    WorldRun,
)
from pytest_ddp.session.planned_runs import ItemVerdict, PlannedRun, RunPlan, RunResult, Runs
from pytest_ddp.settings.marked_items import MARK
from pytest_ddp.system.stdlib import json, shutil
from pytest_ddp.verdict.rank_failure import first_line, message_of

_MORE_ROUNDING = 10
_SCALE, _LARGER_SCALE = 16.0, 64.0
"""The factors by which rounding is enlarged; the larger one in half of the further runs."""

JUDGED = pytest.StashKey[Judged]()
"""The key of how a world was judged, in its item: for the evidence in docs/parity.md."""

_Key: TypeAlias = tuple[str, str, int]
"""A test in all of its worlds: its place, its function, and the number of its set of
parameters."""

_KEY = pytest.StashKey[_Key]()


@dataclass(slots=True)
class Reference:
    """What is known of the reference of one test, for one set of parameters."""

    item: pytest.Item
    world: str
    folder: Path
    has_run: bool = False
    problem: str = ""
    """Why other worlds cannot be compared with it; or empty."""
    skip: str = ""
    plain: RankTable | None = None
    """Records of the second run of this world."""
    further: list[RankTable] = field(default_factory=list)
    """Records of the runs of this world with rounding."""
    why_not_wide: str | None = None
    """Why the reference cannot run in float64; empty if it has; None if it was not tried."""


class Plans:
    """The worlds of a session."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._items: dict[_Key, dict[str, pytest.Item]] = {}
        self._references: dict[_Key, Reference] = {}
        self._left: dict[_Key, set[pytest.Item]] = {}
        """Selected worlds that have not run."""
        self._folder: Path | None = None
        self._numbers = itertools.count()

    def collected(self, items: Sequence[pytest.Item]) -> None:
        """Take the worlds of a file, also those that are deselected later."""
        counts: Counter[tuple[str, str, str]] = Counter()
        for item in items:
            # Each world has the same sets of parameters, in the same order.
            function, world = _function(item), _world(item)
            key = *function, counts[*function, world]
            counts[*function, world] += 1
            item.stash[_KEY] = key
            self._items.setdefault(key, {})[world] = item

    def plan(self, item: pytest.Item) -> RunPlan:
        """The runs of a world."""
        key = item.stash[_KEY]
        self._drop_others(key, item)
        reference = self._references.get(key)
        if reference is None:
            worlds: Any = item.stash[MARK].extra[EXTENSION]
            first = next(iter(worlds))
            reference = Reference(self._items[key][first], first, self._new_folder())
            self._references[key] = reference
        seed_name = f"{key[0]}::{key[1]} {key[2]}"
        return RunPlan(_WorldRuns(item, reference, seed_name).runs())

    def _drop_others(self, key: _Key, item: pytest.Item) -> None:
        """Remove the values of references whose worlds have all run, this one's aside.

        An item that runs again does so before the next one.
        """
        if not self._left:
            for other in item.session.items:
                if _KEY in other.stash:
                    self._left.setdefault(other.stash[_KEY], set()).add(other)
        self._left.get(key, set()).discard(item)
        for done in [one for one in self._references if one != key and not self._left.get(one)]:
            shutil.rmtree(self._references.pop(done).folder, ignore_errors=True)

    def _new_folder(self) -> Path:
        if self._folder is None:
            self._folder = self._config._tmp_path_factory.mktemp("ddp-worlds")  # type: ignore[attr-defined]
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        return folder

    def close(self) -> None:
        """Remove the values of all references."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class _WorldRuns:
    """The runs of one world of one test."""

    def __init__(self, item: pytest.Item, reference: Reference, seed_name: str) -> None:
        self._item, self._reference, self._seed_name = item, reference, seed_name
        self._world = _world(item)

    def runs(self) -> Runs:
        reference = self._reference
        if self._world == reference.world:
            return (yield from self._own_reference())
        if not reference.has_run:
            self._take_reference((yield self._reference_run("reference")))
        if reference.skip:
            return ItemVerdict(skip=reference.skip)
        if reference.problem:
            return ItemVerdict(error=reference.problem)
        own = yield self._world_run("world")
        measured = self._table(self._name("world"), own)
        if measured is None:
            return ItemVerdict(own)
        judged = self._item.stash[JUDGED] = Judged()
        judged.stages["eps"] = parity.compare(measured.table, ())
        if not parity.beyond(judged.stages["eps"]):
            return ItemVerdict(own)
        if problem := (yield from self._measure()):
            return ItemVerdict(error=problem)
        judged.stages["rounding"] = parity.compare(measured.table, self._tables())
        wrong = parity.beyond(judged.stages["rounding"])
        if wrong and self._is_disturbed():
            if problem := (yield from self._measure_more()):
                return ItemVerdict(error=problem)
            judged.stages["more rounding"] = parity.compare(measured.table, self._more_tables())
            wrong = [one for one in wrong if not parity.is_reached(one, self._more_tables())]
        wide: dict[TensorPlace, Deviation] | None = None
        why = ""
        if wrong:
            wide, why = yield from self._in_float64()
            if wide is not None:
                judged.stages["float64"] = wrong
                wrong = [one for one in wrong if not _is_rounding(one, wide)]
        judged.wrong = wrong
        if not wrong:
            return ItemVerdict(own)
        verdict = Verdict(
            tuple(judged.stages["rounding"]),
            tuple(wrong),
            wide,
            why,
            tuple(measured.chancy),
            self._is_disturbed(),
            self._more_tables(),
        )
        failures = [*parity.texts(verdict, self._world, reference.world)]
        failed = yield self._world_run("failing", failures=failures)
        if all(report.passed for report in failed.reports):
            text = "\n\n".join(text for _, _, text in failures)
            return ItemVerdict(error=f"{text}\n\nIn a further run of this world it did not fail.")
        return ItemVerdict(failed)

    # ------------------------------------------------------------------ the reference

    def _own_reference(self) -> Runs:
        reference = self._reference
        is_made = reference.has_run and not reference.problem and not reference.skip
        # Other worlds, which ran before it, were compared with the first one, which is kept.
        name = "again" if is_made else "reference"
        result = yield self._reference_run(name, records=name)
        shutil.rmtree(reference.folder / "again", ignore_errors=True)
        if not is_made or _failure_of(result):
            self._take_reference(result)
        return ItemVerdict(result)

    def _take_reference(self, result: RunResult) -> None:
        reference = self._reference
        name = reference.item.nodeid
        reference.has_run, reference.problem, reference.skip = True, "", ""
        reference.plain, reference.why_not_wide = None, None
        reference.further.clear()
        skipped = [report for report in result.reports if report.skipped]
        if skipped and not hasattr(skipped[0], "wasxfail"):
            longrepr: Any = skipped[0].longrepr
            reason = longrepr[2] if isinstance(longrepr, tuple | list) else str(longrepr)
            reference.skip = f"world {reference.world}: {reason.removeprefix('Skipped: ')}"
        elif skipped or (failed := _failure_of(result)):
            why = "failed as expected" if skipped else f"failed: {failed}"
            reference.problem = f"world {reference.world} is the reference, and {name} {why}"
        elif not (reference.folder / "reference" / "index.json").exists():
            reference.problem = f"{name} has left no record of what it compared"

    def _measure(self) -> Generator[PlannedRun, RunResult, str]:
        """Run the reference again, plain and with rounding; returns why it cannot be one."""
        reference = self._reference
        if reference.plain is not None or reference.problem:
            return reference.problem
        result = yield self._reference_run("repeated", records="", only_measures=True)
        plain = self._table("repeated", result)
        if plain is None:
            reference.problem = self._unrepeatable(_failure_of(result))
            return reference.problem
        yield from self._disturb(0, ROUNDING_RUNS)
        reference.plain = plain
        further = [table.table for table in reference.further]
        repeated = parity.compare(plain.table, further)
        unlike = parity.beyond(repeated)
        if suspects := parity.unrepeated(repeated):
            # What differs between any two runs also differs between those with rounding, so that
            # their differences are no limit for it. In float64 rounding shrinks; the rest stays.
            wide = yield from self._repeated_in_float64()
            if wide is not None:
                unlike = [one for one in suspects if not _is_rounding(one, wide)]
            elif plain.devices == ["cpu"]:
                unlike = suspects  # a CPU adds in the same order in each run
            else:
                fresh = yield from self._repeated_in_fresh_ranks()
                unlike = [one for one in suspects if one.place not in fresh]
        if unlike:
            worst = max(unlike, key=lambda one: one.ratio)
            where = " ".join(filter(None, (worst.place.name, worst.place.tensor)))
            reference.problem = self._unrepeatable(
                f"{where} differs by {worst.distance.error:.3g} from its first run"
            )
        return reference.problem

    def _unrepeatable(self, how: str) -> str:
        world = self._reference.world
        return (
            f"world {world} differs from itself: {how}\n\n"
            f"Worlds are held against world {world}, which must do the same in each run. Look for "
            "what\noutlives a test: a fixture of module scope that is trained again, a cache, the "
            "clock."
        )

    def _measure_more(self) -> Generator[PlannedRun, RunResult, str]:
        if len(self._reference.further) == ROUNDING_RUNS:
            yield from self._disturb(ROUNDING_RUNS, ROUNDING_RUNS + _MORE_ROUNDING)
        return self._reference.problem

    def _disturb(self, first: int, last: int) -> Generator[PlannedRun, RunResult, None]:
        for number in range(first, last):
            name = f"rounding{number}"
            is_larger = number >= ROUNDING_RUNS and number % 2
            result = yield self._reference_run(
                name,
                records="",
                only_measures=True,
                seed=number + 1,
                scale=_LARGER_SCALE if is_larger else _SCALE,
            )
            table = self._table(name, result)
            if table is None:
                world = self._reference.world
                self._reference.problem = (
                    f"world {world}, the reference, fails where its rounding is enlarged, so that "
                    f"no limit can be measured: {_failure_of(result)}\n\nGive rtol= and atol=, or "
                    "exact=True."
                )
                return
            self._reference.further.append(table)

    def _in_float64(
        self,
    ) -> Generator[PlannedRun, RunResult, tuple[dict[TensorPlace, Deviation] | None, str]]:
        """The world's distances in float64, or why there are none."""
        reference = self._reference
        if why := (yield from self._reference_in_float64()):
            return None, f"world {reference.world} {why}"
        name = self._name("wide")
        run = self._world_run("wide", compares="reference64", is_wide=True, only_measures=True)
        result = yield run
        table = self._table(name, result)
        if problem := _why_not_wide(table, _failure_of(result)):
            return None, f"world {self._world} {problem}"
        return (None, "") if table is None else (table.table, "")

    def _reference_in_float64(self) -> Generator[PlannedRun, RunResult, str]:
        """Run the reference in float64; returns why that cannot be, or nothing."""
        reference = self._reference
        if reference.why_not_wide is None:
            result = yield self._reference_run("wide", records="reference64", is_wide=True)
            table = self._table("wide", result)
            reference.why_not_wide = _why_not_wide(table, _failure_of(result))
        return reference.why_not_wide

    def _repeated_in_float64(
        self,
    ) -> Generator[PlannedRun, RunResult, dict[TensorPlace, Deviation] | None]:
        """How far a second run of the reference in float64 is from the first."""
        if (yield from self._reference_in_float64()):
            return None
        again = self._reference_run(
            "repeated64", records="", compares="reference64", only_measures=True, is_wide=True
        )
        table = self._table("repeated64", (yield again))
        return None if table is None else table.table

    def _repeated_in_fresh_ranks(self) -> Generator[PlannedRun, RunResult, set[TensorPlace]]:
        """What also differs from the first run where nothing is left of it: chance, as of atomics.

        What differs in warm ranks alone is what outlives a test.
        """
        again = replace(self._reference_run("fresh", records="", only_measures=True), isolate=True)
        table = self._table("fresh", (yield again))
        if table is None:
            return set()
        found = parity.compare(table.table, [one.table for one in self._reference.further])
        return {one.place for one in parity.unrepeated(found)}

    # ------------------------------------------------------------------ results

    def _tables(self) -> list[dict[TensorPlace, Deviation]]:
        plain = self._reference.plain
        first = self._reference.further[:ROUNDING_RUNS]
        return [each.table for each in (*first, *([plain] if plain else []))]

    def _more_tables(self) -> list[dict[TensorPlace, Deviation]]:
        return [each.table for each in self._reference.further[ROUNDING_RUNS:]]

    def _is_disturbed(self) -> bool:
        """Whether the runs with rounding had an operator to disturb."""
        return any(any(each.disturbed.values()) for each in self._reference.further)

    def _table(self, name: str, result: RunResult) -> RankTable | None:
        """What all ranks have measured; None if the run has not passed."""
        if _failure_of(result) or any(report.skipped for report in result.reports):
            return None
        merged = RankTable({}, {}, [], [], [])
        for path in (self._reference.folder / "tables").glob(f"{name}-*.json"):
            found = RankTable.from_json(json.loads(path.read_text()))
            merged.table.update(found.table)
            merged.disturbed.update(found.disturbed)
            for into, new in (
                (merged.chancy, found.chancy),
                (merged.dtypes, found.dtypes),
                (merged.devices, found.devices),
            ):
                into.extend(each for each in new if each not in into)
        return merged

    # ------------------------------------------------------------------ runs

    def _name(self, what: str) -> str:
        return f"{re.sub(r'[^A-Za-z0-9_]', '_', self._world)}.{what}"

    def _reference_run(self, name: str, *, records: str = "reference", **fields: Any) -> PlannedRun:
        reference = self._reference
        if records:
            shutil.rmtree(reference.folder / records, ignore_errors=True)
        run = WorldRun(
            name, reference.world, reference.world, str(reference.folder), records, **fields
        )
        return self._planned(run, reference.item, None)

    def _world_run(self, what: str, **fields: Any) -> PlannedRun:
        reference = self._reference
        folder = str(reference.folder)
        run = WorldRun(self._name(what), self._world, reference.world, folder, **fields)
        carried = _CARRIED[run.is_wide]
        return self._planned(run, self._item, reference.folder / "carry" / carried)

    def _planned(self, run: WorldRun, item: pytest.Item, carried: Path | None) -> PlannedRun:
        carry = self._reference.folder / "carry" / run.name
        carry.parent.mkdir(exist_ok=True)
        for left in carry.parent.iterdir():
            if left == carry or left.name not in _CARRIED:  # others are of runs that are over
                _remove(left)
        if carried is None or not any(carried.iterdir()):
            carry.mkdir()
        else:
            shutil.copytree(carried, carry, symlinks=True)
        for table in (self._reference.folder / "tables").glob(f"{run.name}-*.json"):
            table.unlink()
        sent = {EXTENSION: {**run.as_json(), "carry": str(carry)}}
        of = "" if item is self._item else f" of world {run.world}"
        return PlannedRun(f"{run.name.rpartition('.')[2]}{of}", item, sent, self._seed_name)


def _function(item: pytest.Item) -> tuple[str, str]:
    function: Any = item
    assert item.parent is not None
    return item.parent.nodeid, str(function.originalname)


def _world(item: pytest.Item) -> str:
    function: Any = item
    return str(function.callspec.params[PARAMETER])


def _failure_of(result: RunResult) -> str:
    """The first line of a run's first failure; empty if there is none."""
    for report in result.reports:
        if report.failed:
            return first_line(message_of(report.longrepr)) or "it failed"
    return ""


def _why_not_wide(table: RankTable | None, failure: str) -> str:
    if table is None:
        return f"fails with float64 as torch's default dtype: {failure or 'it was skipped'}"
    if narrow := [dtype for dtype in table.dtypes if dtype not in _WIDE]:
        return f"compares {narrow[0].removeprefix('torch.')} also where float64 is the default"
    return ""


def _remove(folder: Path) -> None:
    """Remove a folder; most are empty, which needs one call instead of many."""
    try:
        folder.rmdir()
    except OSError:
        shutil.rmtree(folder)


_WIDE = ("torch.float64", "torch.complex128")
_CARRIED = ("reference", "wide")
"""Runs of the reference whose ``ddp.carry`` other worlds find."""


def _is_rounding(found: Comparison, wide: dict[TensorPlace, Deviation]) -> bool:
    at = wide.get(found.place)
    return at is not None and parity.is_rounding_in_float64(found, at)
