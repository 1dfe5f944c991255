"""The tests that go to one process of pytest-xdist: those of a file, and of files with one server.

A rank starts multiprocessing's server of forks for its DataLoader workers, and servers of launched
ranks, at the first test that needs them; they take seconds, and serve later tests.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

SERVERS = {
    "launches ranks": (
        "test_launched",
        "caches/test_killed",
        "caches/test_reference",
        "callbacks/test_reference_error_paths",
        "framework/test_nemesis",
        "lifecycle/test_reference",
        "lifecycle/test_training_crashes",
        "model/test_reference",
        "writing/test_reference_publishing",
    ),
    "starts workers": (
        "test_reference",
        "ecosystem/test_servers",
        "lifecycle/test_reference_training",
        "sampling/test_reference",
        "windows/test_reference",
    ),
}


class ByServer(LoadFileScheduling):
    """``--dist loadfile``, where files that use one server count as one file."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        name = file.removeprefix("conformance/").removesuffix(".py")
        return next((server for server, files in SERVERS.items() if name in files), file)


def make(config: pytest.Config, log: Producer) -> ByServer | None:
    """Make the scheduler for the hook; None leaves the choice to xdist."""
    return ByServer(config, log) if config.getoption("dist") == "loadfile" else None
