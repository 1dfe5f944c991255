"""Captured output of a rank: its own, and readable after its death."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import pytest

from pytest_ddp.system.own import os


def capture_afresh(config: pytest.Config, world_size: int, streams: list[int]) -> None:
    """Give this rank standard streams and capture files of its own.

    Forked ranks would otherwise write into those of their host.

    Args:
        config: of its session.
        world_size: the only rank of a world writes to the terminal itself under ``-s``.
        streams: descriptors to become standard output and error.
    """
    manager = config.pluginmanager.getplugin("capturemanager")
    captures = manager is not None and manager.is_globally_capturing()
    if captures:
        manager.stop_global_capturing()
    if world_size > 1 or config.option.capture != "no":
        _put_in_place(streams)
    if captures:
        manager.start_global_capturing()


def _put_in_place(streams: list[int]) -> None:
    flush()
    for number, descriptor in enumerate(streams, start=1):
        os.dup2(descriptor, number)
    for stream in _real():
        # A terminal's lines would come at once as well.
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(line_buffering=True)


def flush() -> None:
    """Have the standard streams of this process say what they hold back."""
    for stream in _real():
        # The test may have closed it.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _real() -> list[Any]:
    return [stream for stream in (sys.__stdout__, sys.__stderr__) if stream is not None]


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
