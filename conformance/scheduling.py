"""Which tests go to one process of pytest-xdist: those of a file, and of files with one server.

A rank starts multiprocessing's server of forks for its DataLoader workers, and one that launches
ranks, at the first test that asks for it; both take seconds, and serve all tests after that.
"""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

SERVERS = {
    "launches ranks": (
        "test_launched",
        "test_nemesis",
        "test_reference_error_paths",
        "test_reference_lifecycle",
        "test_reference_model",
        "test_training_crashes",
    ),
    "starts workers": (
        "test_reference",
        "test_reference_loaders",
        "test_reference_training",
        "test_reference_windows",
        "test_servers",
    ),
}


class ByServer(LoadFileScheduling):
    """``--dist loadfile``, where files that use one server count as one file."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        name = PurePosixPath(file).stem
        return next((server for server, files in SERVERS.items() if name in files), file)


def make(config: pytest.Config, log: Producer) -> ByServer | None:
    """For the hook; None leaves the choice to xdist."""
    return ByServer(config, log) if config.getoption("dist") == "loadfile" else None
