"""Hooks of pytest-ddp, for its own extensions and for other plugins.

They are implemented as pytest's own are, by a plugin or a conftest file. Where pytest-ddp need not
be installed, mark an implementation with ``@pytest.hookimpl(optionalhook=True)``.

Each is called either in the pytest process (an xdist worker is one, too) or in the ranks. What
sends data from one side to the other returns a dict by the name of the sender, so that several
plugins can do so; its values must be JSON-able.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_ddp.asked.mark import MarkArgument
    from pytest_ddp.fixture import Ddp


# ------------------------------------------------------------------ in the pytest process


@pytest.hookspec()
def pytest_ddp_mark_arguments() -> Mapping[str, MarkArgument]:  # type: ignore[empty-body]
    """Return arguments to add to the ``ddp`` mark, by name.

    Called once, when pytest is configured. The check of an argument returns the value to keep, or
    raises a :class:`ValueError` whose text says what is allowed, such as ``it is a number``; the
    error that users see also has the name, the value and the test. Values are in
    ``item.stash[pytest_ddp.asked.marks.MARK].extra`` from the end of collection on.
    """


@pytest.hookspec()
def pytest_ddp_own_environment(config: pytest.Config) -> AbstractContextManager[None]:  # type: ignore[empty-body]
    """Return a context in which the pytest process has the environment that it was started with.

    For plugins that set ``RANK`` and the like while test files are collected. It is entered where
    the launcher of this process is looked for.
    """


# ------------------------------------------------------------------ in the ranks


@pytest.hookspec()
def pytest_ddp_fixture_attributes(ddp: Ddp) -> Mapping[str, object]:  # type: ignore[empty-body]
    """Return attributes to add to the object of the ``ddp`` fixture, by name.

    Called once in each rank, before its first test.
    """
