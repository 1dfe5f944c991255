"""Coverage of what ranks ran, for whoever measures the pytest process.

pytest-cov, ``coverage run -m pytest`` and scripts have this in common: a started ``Coverage`` in
the pytest process. Ranks are measured as it is. Where its data will be combined with those of
other processes (pytest-cov always does), the files of ranks are further ones of these; otherwise
they become part of its data, as if the pytest process had run those lines itself.
"""

from __future__ import annotations

import glob
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pytest_ddp.system.own import os
from pytest_ddp.wire.hosting import Measured


class Measuring:
    """What the pytest process is measured by, if it is."""

    def __init__(self, config: pytest.Config, warn: Callable[[str], None]) -> None:
        self._warn = warn
        # coverage.py is not imported where nobody has done so.
        kind: Any = getattr(sys.modules.get("coverage"), "Coverage", None)
        self._coverage: Any = None if kind is None else kind.current()
        self.measured = None if self._coverage is None else self._as_it_is(config)

    def _as_it_is(self, config: pytest.Config) -> Measured | None:
        settings = self._coverage.config
        if not hasattr(settings, "serialize"):
            version = sys.modules["coverage"].__version__
            self._warn(f"coverage.py {version} cannot measure ranks: 7.10 or newer can")
            return None
        # Its data would tell as well, but write what it has by now, beside what pytest-cov keeps.
        base = os.path.abspath(self._coverage.get_option("run:data_file"))
        return Measured(
            config=settings.serialize(),
            data_file=f"{base}.ddp-{os.getpid()}",
            by_plugin=config.pluginmanager.hasplugin("_cov"),
            contexts=config.pluginmanager.hasplugin("_cov_contexts"),
            process_start=os.environ.get("COVERAGE_PROCESS_START", ""),
        )

    def end(self, *, broken_off: bool) -> None:
        """Put what ranks have left, who are gone, where the data of the pytest process are.

        Args:
            broken_off: the session has ended otherwise than by its last test, of which pytest-cov
                keeps nothing.
        """
        measured, self.measured = self.measured, None
        if measured is None:
            return
        dropped = broken_off and measured.by_plugin
        if self._coverage.get_option("run:parallel") and not dropped:
            return  # files to be combined, by pytest-cov or by the user, as that of this process is
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
            self._warn(f"the coverage that a rank has left cannot be read: {error}")
        finally:
            data.close()
