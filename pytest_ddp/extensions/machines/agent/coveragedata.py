"""What ranks of this machine leave for a coverage report, which is made on node 0."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pytest_ddp.extensions.machines.agent_connection import FrameKind, WireFrame
from pytest_ddp.protocol.host_messages import CoverageSettings
from pytest_ddp.system.tempfiles import SessionFolder

_NAME = "coverage"


class CoverageData:
    """Keeps the files of ranks in its own folder until they are sent: the host removes its folder.

    Also on node 0: if machines share a file system, pytest-cov on a node that starts late removes
    the files beside the data file to which ranks would write.
    """

    def __init__(self) -> None:
        self._folder: SessionFolder | None = None

    def redirected(self, coverage: CoverageSettings | None) -> CoverageSettings | None:
        """The controller's settings with another data file."""
        if coverage is None:
            return None
        if self._folder is None:
            self._folder = SessionFolder()
        return replace(coverage, data_file=f"{self._folder.path}/{_NAME}")

    def frames(self) -> Iterator[WireFrame]:
        """All files of data, which the coordinator writes beside those of node 0."""
        folder = "" if self._folder is None else self._folder.path
        for file in glob.glob(f"{_NAME}.*", root_dir=folder) if folder else ():
            suffix = file.removeprefix(f"{_NAME}.").encode()
            yield WireFrame(
                FrameKind.COVERAGE, data=suffix + b"\0" + Path(folder, file).read_bytes()
            )

    def close(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            self._folder.close()
