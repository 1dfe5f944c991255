"""Fixtures of the acceptance tests, and the inner run's output beside a failed one."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.acceptance.suite")

from tests.acceptance.suite import Finished, Suite  # noqa: E402 - rewritten, once registered


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """An empty suite for one test."""
    directory = tmp_path / "suite"
    directory.mkdir()
    return Suite(directory)


@pytest.fixture(scope="module")
def new_suite(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Suite]:
    """Makes empty suites that a module's tests share."""
    return lambda: Suite(tmp_path_factory.mktemp("suite"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the inner run when an assertion about it failed."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        for name, value in item.funcargs.items():
            if isinstance(value, Finished):
                report.sections.append((f"Inner run {name!r}", value.tail()))
    return report
