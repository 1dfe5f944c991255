"""Files without a name, shared by host, ranks and controller.

A test cannot delete them, the kernel frees them with the last process that has one open, and they
need no folder: TMPDIR may be cleared, XDG_RUNTIME_DIR is missing in containers, and /dev/shm is
small there and fills up. They are passed on as descriptors.
"""

from __future__ import annotations

import pytest

from pytest_ddp.system.own import os


def create(name: str) -> int:
    """The descriptor of a new empty file; ``name`` is only shown in ``/proc``.

    Raises:
        pytest.UsageError: the system cannot make one.
    """
    try:
        return os.memfd_create(name)
    except OSError as error:
        raise pytest.UsageError(f"ranks need files in memory (memfd_create): {error}") from error


def path_of(descriptor: int) -> str:
    """A path for the process that has the descriptor, or a fork of it, to open the file by."""
    return f"/proc/self/fd/{descriptor}"
