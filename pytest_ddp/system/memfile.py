"""Files without a name, for what host, ranks and controller share.

No test's cleaning finds them, the kernel frees them with the last process that has one open,
and they need no directory: TMPDIR may be wiped, XDG_RUNTIME_DIR is missing in containers, and
/dev/shm is small there and fills up. They are passed on as descriptors.
"""

from __future__ import annotations

import pytest

from pytest_ddp.system.own import os


def create(name: str) -> int:
    """The descriptor of a new empty file; ``name`` is for ``/proc`` alone.

    Raises:
        pytest.UsageError: the system has none to give.
    """
    try:
        return os.memfd_create(name)
    except OSError as error:
        raise pytest.UsageError(f"ranks need files in memory (memfd_create): {error}") from error


def path_of(descriptor: int) -> str:
    """A path by which the process that has the descriptor, or a fork of it, opens the file."""
    return f"/proc/self/fd/{descriptor}"
