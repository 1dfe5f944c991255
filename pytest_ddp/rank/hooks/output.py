"""Captured output of a rank: in files of its own, which the controller can read after its death."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import pytest

from pytest_ddp.system.stdlib import os


def capture_afresh(config: pytest.Config, world_size: int, streams: list[int]) -> None:
    """Give this rank standard streams and capture files of its own.

    A forked rank would otherwise write into its host's.

    Args:
        config: of the rank's session.
        world_size: with one rank and ``-s``, the rank writes to the terminal itself.
        streams: descriptors to become standard output and error.
    """
    manager = config.pluginmanager.getplugin("capturemanager")
    captures = manager is not None and manager.is_globally_capturing()
    if captures:
        manager.stop_global_capturing()
    if world_size > 1 or config.getoption("capture", "no") != "no":
        _put_in_place(streams)
    if captures:
        manager.start_global_capturing()


def _put_in_place(streams: list[int]) -> None:
    flush()
    for number, descriptor in enumerate(streams, start=1):
        os.dup2(descriptor, number)
    for stream in _real():
        # Lines must arrive at once, as on a terminal.
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(line_buffering=True)


def flush() -> None:
    """Write what the standard streams of this process still buffer."""
    for stream in _real():
        # The test may have closed the stream.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _real() -> list[Any]:
    return [stream for stream in (sys.__stdout__, sys.__stderr__) if stream is not None]


def capture_files(config: pytest.Config) -> dict[str, int]:
    """Descriptors of the files with captured output that no report has had yet.

    The controller gets copies, which outlive the rank. Empty where pytest does not capture into
    files (``-s``, ``--capture=sys``).
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
