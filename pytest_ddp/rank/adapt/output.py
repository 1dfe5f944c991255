"""Captured output of a rank: its own, and readable after its death."""

from __future__ import annotations

import pytest

from pytest_ddp.system.own import os


def capture_afresh(config: pytest.Config) -> None:
    """Give this rank capture files of its own.

    Forked ranks would otherwise write into the one file of their host.
    """
    manager = config.pluginmanager.getplugin("capturemanager")
    if manager is not None and manager.is_globally_capturing():
        manager.stop_global_capturing()
        manager.start_global_capturing()


def capture_files(config: pytest.Config) -> dict[str, int]:
    """Descriptors of the files that hold captured output which no report carried yet.

    Handed to the controller, they outlive the rank. Empty where pytest captures
    otherwise than into files (``-s``, ``--capture=sys``).
    """
    manager = config.pluginmanager.getplugin("capturemanager")
    capturing = getattr(manager, "_global_capturing", None)
    files = {}
    for name in ("out", "err"):
        stream = getattr(getattr(capturing, name, None), "tmpfile", None)
        try:
            files["std" + name] = os.dup(stream.fileno())  # type: ignore[union-attr]
        except (AttributeError, OSError, ValueError):
            continue
    return files
