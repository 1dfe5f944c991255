"""Coverage of the code that ranks run, if the pytest process is measured.

pytest-cov, ``coverage run -m pytest`` and scripts all start a ``Coverage`` in the pytest process.
Ranks are measured with its settings. If its data will be combined with those of other processes
(pytest-cov always does), the files of ranks are added to these; otherwise they are merged into its
data, as if the pytest process had run those lines itself.
"""

from __future__ import annotations

import glob
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pytest_ddp.protocol.host_messages import CoverageSettings
from pytest_ddp.system.stdlib import os


class CoverageOfRanks:
    """The coverage measurement of the pytest process, if there is one."""

    def __init__(self, config: pytest.Config, warn: Callable[[str], None]) -> None:
        self._warn = warn
        # Without importing coverage.py: if it is not imported, it does not measure.
        kind: Any = getattr(sys.modules.get("coverage"), "Coverage", None)
        self._coverage: Any = None if kind is None else kind.current()
        self.measured = None if self._coverage is None else self._for_ranks(config)

    def _for_ranks(self, config: pytest.Config) -> CoverageSettings | None:
        settings = self._coverage.config
        if not hasattr(settings, "serialize"):
            version = sys.modules["coverage"].__version__
            self._warn(f"coverage.py {version} cannot measure ranks: 7.10 or newer can")
            return None
        # Not from ``get_data()``: that writes the data so far, beside those that pytest-cov keeps.
        base = os.path.abspath(self._coverage.get_option("run:data_file"))
        return CoverageSettings(
            config=settings.serialize(),
            data_file=f"{base}.ddp-{os.getpid()}",
            by_plugin=config.pluginmanager.hasplugin("_cov"),
            contexts=config.pluginmanager.hasplugin("_cov_contexts"),
            process_start=os.environ.get("COVERAGE_PROCESS_START", ""),
        )

    def end(self, *, broken_off: bool) -> None:
        """Add the files of ranks, which have ended, to the data of the pytest process.

        Args:
            broken_off: whether the session ended before its last test; then pytest-cov keeps
                nothing.
        """
        measured, self.measured = self.measured, None
        if measured is None:
            return
        dropped = broken_off and measured.by_plugin
        if self._coverage.get_option("run:parallel") and not dropped:
            return  # pytest-cov or the user combines the files with that of this process
        for file in glob.glob(glob.escape(measured.data_file) + ".*"):
            if not dropped:
                self._take(file)
            os.unlink(file)

    def _take(self, file: str) -> None:
        from coverage import CoverageData  # noqa: PLC0415 - which measures this process
        from coverage.exceptions import CoverageException  # noqa: PLC0415

        data = CoverageData(file)
        try:
            data.read()
            self._coverage.get_data().update(data)
        except CoverageException as error:
            self._warn(f"the coverage file of a rank cannot be read: {error}")
        finally:
            data.close()
