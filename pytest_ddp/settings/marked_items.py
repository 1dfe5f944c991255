"""Reads and checks the ddp marks during collection, and stores them with their items."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pytest_ddp.settings.mark import Mark, check_function, make_test, read_mark
from pytest_ddp.settings.options import Options

MARK = pytest.StashKey[Mark]()
"""The ddp marks of a test; only ddp tests have it."""


def check_items(
    report: pytest.CollectReport,
    options: Options,
    warn: Callable[[pytest.Item, str], None],
) -> pytest.CollectReport:
    """Turn wrong marks among the collected items into a collection error.

    Not a UsageError from a hook: so all wrong marks are shown at once, and also under xdist, for
    which such an exception is an internal error.

    Before that, plugins turn items without a mark into ddp tests.

    Args:
        report: the collected items.
        options: for arguments that are not in the marks.
        warn: called for items that look wrong and may be right.
    """
    errors = list(_errors(report, options))
    if not errors:
        errors += _warned(report, warn)
    if errors:
        report.outcome, report.longrepr, report.result = "failed", "\n".join(errors), []
    return report


def read_marks(items: list[pytest.Item], options: Options) -> None:
    """Store each item's mark with it, also one that a conftest has just added.

    Raises:
        pytest.UsageError: such a late mark is wrong.
    """
    for item in items:
        mark = _checked_mark(item, options)
        if mark is not None:
            item.stash[MARK] = mark


def _errors(report: pytest.CollectReport, options: Options) -> Iterator[str]:
    for node in report.result if report.passed else ():
        if isinstance(node, pytest.Item):
            try:
                make_test(node)
                _checked_mark(node, options)
            except pytest.UsageError as error:
                # The first line is shown in pytest's short summary, so it needs the error.
                yield str(error).replace("\n  ", ": ", 1)


def _warned(
    report: pytest.CollectReport, warn: Callable[[pytest.Item, str], None]
) -> Iterator[str]:
    """Warn of world sizes that are in no mark; yield warnings that a filter turned into errors."""
    functions: dict[str, tuple[pytest.Item, list[int]]] = {}
    for node in report.result if report.passed else ():
        size = getattr(getattr(node, "callspec", None), "params", {}).get("world_size")
        if isinstance(node, pytest.Item) and type(size) is int and _is_bare(node):
            name = node.nodeid.partition("[")[0]
            sizes = functions.setdefault(name, (node, []))[1]
            sizes += [size] if size not in sizes else []
    for name, (item, sizes) in functions.items():
        text = (
            f"{name}: a parameter world_size does not set the number of ranks. Write "
            f"@pytest.mark.ddp(world_size={sizes}), and remove the parameter"
        )
        try:
            warn(item, text)
        except Warning:
            yield text


def _is_bare(item: pytest.Item) -> bool:
    marks = [*item.iter_markers("ddp")]
    return bool(marks) and not any("world_size" in mark.kwargs for mark in marks)


def _checked_mark(item: pytest.Item, options: Options) -> Mark | None:
    if item.get_closest_marker("ddp") is None:
        return None
    from pytest_ddp.settings.layout import OneMachine  # noqa: PLC0415 - only ddp tests need it
    from pytest_ddp.settings.plan import make_plan  # noqa: PLC0415 - as above

    check_function(item)
    mark = read_mark(item, options)
    if mark is not None:
        make_plan(item, mark, options, OneMachine(0))
    return mark
