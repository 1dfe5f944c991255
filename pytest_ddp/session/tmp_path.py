"""The ``tmp_path`` of each ddp test: named by the controller, made by the first rank that uses it.

So the controller need not know whether the test uses it: ``request.getfixturevalue`` may request it
at any time.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_ddp.system.stdlib import os, shutil

_LONGEST_NAME = 30
"""Characters, as in pytest."""


class TmpPaths:
    """Names one directory for all ranks of a test, and removes it by pytest's policy."""

    def __init__(self, config: pytest.Config) -> None:
        """Take pytest's factory.

        Raises:
            pytest.UsageError: pytest has none.
        """
        self._factory: Any = getattr(config, "_tmp_path_factory", None)
        if self._factory is None:
            raise pytest.UsageError(
                "ddp tests need pytest's plugin tmpdir, for their directories: remove -p no:tmpdir"
            )
        self._free: defaultdict[str, int] = defaultdict(int)
        """The lowest number that may be unused, by the path before it."""

    @functools.cached_property
    def base(self) -> Path:
        """pytest's base directory of this session."""
        base: Path = self._factory.getbasetemp()
        return base

    def name(self, item: pytest.Item) -> str:
        """The path of the test's directory, if a rank makes it."""
        stem = os.path.join(self.base, re.sub(r"\W", "_", item.name)[:_LONGEST_NAME])
        while os.path.exists(path := f"{stem}{self._free[stem]}"):
            self._free[stem] += 1
        return path

    def keep_or_remove(self, path: str, reports: Sequence[pytest.TestReport]) -> None:
        """Remove the directory if ``tmp_path_retention_policy`` requires it for these reports."""
        policy = self._factory._retention_policy
        passed = bool(reports) and all(report.passed for report in reports)
        if policy == "none" or (policy == "failed" and passed):
            shutil.rmtree(path, ignore_errors=True)
