"""ddp marks during collection: read, checked, and kept with their items."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pytest_ddp.asked.mark import Mark, check_function, read_mark
from pytest_ddp.asked.options import Options

MARK = pytest.StashKey[Mark]()
"""What a test's ddp marks say; only ddp tests have it."""


def check_items(
    report: pytest.CollectReport, options: Options, adopt: Callable[[pytest.Item], None] | None
) -> pytest.CollectReport:
    """Turn wrong marks among the collected items into a collection error.

    ``adopt`` marks, before that, what is to be a ddp test without a mark of its own.

    Not a UsageError out of a hook: all wrong marks are shown at once, and xdist, for
    which such an exception is an internal error, shows them too.
    """
    errors = list(_errors(report, options, adopt))
    if errors:
        report.outcome, report.longrepr, report.result = "failed", "\n".join(errors), []
    return report


def read_marks(items: list[pytest.Item], options: Options) -> None:
    """Keep each item's mark with it, also one that a conftest added just now.

    Raises:
        pytest.UsageError: such a late mark is wrong.
    """
    for item in items:
        mark = _checked_mark(item, options)
        if mark is not None:
            item.stash[MARK] = mark


def _errors(
    report: pytest.CollectReport, options: Options, adopt: Callable[[pytest.Item], None] | None
) -> Iterator[str]:
    for node in report.result if report.passed else ():
        if isinstance(node, pytest.Item):
            try:
                if adopt is not None:
                    adopt(node)
                _checked_mark(node, options)
            except pytest.UsageError as error:
                # pytest's short summary shows the first line: let it say what is wrong.
                yield str(error).replace("\n  ", ": ", 1)


def _checked_mark(item: pytest.Item, options: Options) -> Mark | None:
    if item.get_closest_marker("ddp") is None:
        return None
    from pytest_ddp.asked.plan import make_plan  # noqa: PLC0415 - only ddp tests pay for it

    check_function(item)
    mark = read_mark(item, options)
    if mark is not None:
        make_plan(item, mark, options, gpus=0)
    return mark
