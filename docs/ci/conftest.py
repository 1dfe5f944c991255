"""For the conftest.py at the root of your tests, where jobs are cancelled by SIGTERM."""

import signal

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Take SIGTERM for Ctrl-C: pytest ends its ranks and writes its files, instead of dying."""
    if not hasattr(config, "workerinput"):  # that of a worker of pytest-xdist, or of a rank
        signal.signal(signal.SIGTERM, signal.default_int_handler)
