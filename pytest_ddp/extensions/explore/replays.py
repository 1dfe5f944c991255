"""Schedules to run again: that of the command line, and those that have failed before.

pytest's cache keeps, by test, the schedule that failed and how far all threads were when its holds
ended: an order of which no state tells when it is reached again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import pytest

from pytest_ddp.extensions.explore.ranks.board import HOLDS
from pytest_ddp.extensions.explore.schedule import Schedule, parse_schedule, thread_text
from pytest_ddp.settings.mark import WORLD_SIZE_PARAM
from pytest_ddp.settings.marked_items import MARK

Ends: TypeAlias = list[list[list[int]]]
"""How far threads were when each hold ended: by hold, rows of rank, thread, number of points."""


class KeptFailure(NamedTuple):
    """A schedule with which a test has failed."""

    schedule: str
    ends: Ends


def problem(tests: Sequence[pytest.Item], schedule: str) -> str:
    """Why a schedule of the command line cannot be run with these ddp tests; or empty."""
    option = f"--ddp-schedule={schedule!r}"
    if len(tests) != 1:
        found = f"{len(tests)} ddp tests are selected" if tests else "no ddp test is selected"
        return (
            f"{option}: a schedule is for one test, and {found}. Name it on the command line: "
            f"pytest 'path/test_file.py::test_name' {option}"
        )
    return _problem_of(tests[0], parse_schedule(schedule), option)


def _problem_of(test: pytest.Item, schedule: Schedule, option: str) -> str:
    if len(schedule) > HOLDS:
        return f"{option}: it has {len(schedule)} holds, and {HOLDS} are possible."
    callspec: Any = getattr(test, "callspec", None)
    params = {} if callspec is None else callspec.params
    size = params.get(WORLD_SIZE_PARAM, test.stash[MARK].world_sizes[0])
    beyond = [hold for hold in schedule if isinstance(size, int) and hold.thread.rank >= size]
    if not beyond:
        return ""
    return (
        f"{option}: {test.nodeid} has no rank {thread_text(beyond[0].thread)}; its ranks are 0 to "
        f"{size - 1}."
    )


# ------------------------------------------------------------------ the cache


def kept(item: pytest.Item) -> KeptFailure | None:
    """The schedule with which a test has failed last time."""
    cache = getattr(item.config, "cache", None)
    found: Any = None if cache is None else cache.get(_key(item), None)
    try:
        schedule, ends = found
        parse_schedule(schedule)
    except (TypeError, ValueError):
        return None
    return KeptFailure(schedule, ends)


def keep(item: pytest.Item, failure: KeptFailure | None) -> None:
    """Keep the schedule with which a test fails; None if it fails no more."""
    cache = getattr(item.config, "cache", None)
    if cache is not None and (failure is not None or kept(item) is not None):
        cache.set(_key(item), failure)


def _key(item: pytest.Item) -> str:
    # A file for each test: xdist workers write at the same time.
    digest = hashlib.sha256(item.nodeid.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"ddp/explore/{digest}"
