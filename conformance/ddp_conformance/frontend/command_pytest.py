"""pytest as the command runs it: only the plugins that it needs, whatever is installed or set."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from ddp_conformance.framework.recording import describe

PLUGINS = (
    "pytest_ddp.plugin",
    "ddp_conformance.plugin",
    "ddp_conformance.frontend.command_request",
)

NOT_RUN = 3
"""Exit code: no verdict on the parts, because pytest or a plugin failed."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

_SETTINGS = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")
"""Environment variables that are meant for the user's own tests."""


def run_pytest(arguments: Sequence[str], plugins: Sequence[str], *collectors: object) -> int | None:
    """Run pytest; None if all checks ran or were refused, else the exit code of the command.

    ``plugins`` are the user's, in addition; ``collectors`` are plugin objects.
    """
    loaded = [part for name in (*PLUGINS, *plugins) for part in ("-p", name)]
    try:
        with _without_settings():
            ended = pytest.main(
                ["--disable-plugin-autoload", *loaded, *arguments], plugins=collectors
            )
    except Exception as error:  # from a plugin's hook that pytest calls without a guard
        return _not_run(describe(error))
    if ended in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return None
    if ended == pytest.ExitCode.INTERRUPTED:
        return INTERRUPTED
    return _not_run(f"pytest ended with {getattr(ended, 'name', ended)}")


def _not_run(reason: str) -> int:
    print(f"the checks could not be run: {reason}", file=sys.stderr)
    return NOT_RUN


@contextmanager
def _without_settings() -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in _SETTINGS if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
