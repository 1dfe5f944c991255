"""The options of this extension, and the argument of the mark. Imports nothing that is large."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from pytest_ddp.extensions.explore import EXTENSION
from pytest_ddp.settings.mark import MarkArgument
from pytest_ddp.settings.options import Setting
from pytest_ddp.settings.rules import option_error

LEAST = 3
"""The least number of runs in which a test is explored: two without a hold, and one with."""
_RULE = f"it is how often a test runs at most, {LEAST} or more; 0 for a test that is not explored"
_GROUP = "orders of ranks in ddp tests"


def check_runs(value: object) -> int:
    """Return ``value`` if it is a number of runs.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, int) and not isinstance(value, bool) and (value == 0 or value >= LEAST):
        return value
    raise ValueError(_RULE)


def _check_text(value: object) -> str:
    return str(value or "")


_EXPLORE = Setting(
    *("explore", "N", "int", 0, check_runs, _RULE),
    help="run each ddp test up to N times, with ranks late at points where their order matters",
    group=_GROUP,
)
_SCHEDULE = Setting(
    *("schedule", "SCHEDULE", "string", "", _check_text, ""),
    help="run one ddp test once, with the late ranks that --ddp-explore has printed, such as "
    "'1@open:best.ckpt#1'",
    group=_GROUP,
)
SETTINGS = (_EXPLORE, _SCHEDULE)
MARK_ARGUMENTS = {EXTENSION: MarkArgument(check_runs, "explore=20 finds races")}


TALLY = pytest.StashKey[Any]()
"""The key of the session's :class:`~pytest_ddp.extensions.explore.tally.Tally` in pytest's
configuration."""
RUNS = pytest.StashKey[Any]()
"""The key of an item's :class:`~pytest_ddp.extensions.explore.exploring.TestRuns`."""


class ExploreOptions(NamedTuple):
    """The options of a session that explores tests."""

    runs: int
    """The most runs of a test whose mark has no number of runs; 0 if it is not explored."""
    schedule: str
    """The schedule of the session's only ddp test; empty to choose schedules."""


def read(config: pytest.Config) -> ExploreOptions:
    """The options of the command line and the ini file.

    Raises:
        pytest.UsageError: a value is wrong, or both are given.
    """
    options = ExploreOptions(*(setting.read(config, config.option) for setting in SETTINGS))
    if not options.schedule:
        return options
    if getattr(config.option, _EXPLORE.ini, None) is not None and options.runs:
        raise option_error(
            f"--ddp-explore={options.runs} and --ddp-schedule={options.schedule!r}: a schedule is "
            "one run, and exploring chooses schedules itself. Leave out one of them."
        )
    from pytest_ddp.extensions.explore.schedule import parse_schedule  # noqa: PLC0415 - few need it

    try:
        parse_schedule(options.schedule)
    except ValueError as error:
        raise option_error(
            f"--ddp-schedule={options.schedule!r} {error}. Copy it from the line Replay: of a "
            "failure."
        ) from None
    return options
