"""The ranks of the running test, as far as a check needs them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


class Ranks(Protocol):
    """One rank's view of its peers; the ``ddp`` fixture is one.

    The exchange must not use the process group under test, as a check must also work after the
    subject has broken that group.
    """

    @property
    def rank(self) -> int:
        """Number of this rank, 0 to ``world_size - 1``."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    def gather(self, obj: Any) -> list[Any]:
        """The objects of all ranks by rank, on every rank."""


@runtime_checkable
class RanksOfATest(Ranks, Protocol):
    """The ranks of a ddp test, which has a backend and a device for them."""

    backend: str
    """The backend as torch takes it."""

    @property
    def device(self) -> torch.device:
        """The device with the number of the GPU, if this rank has one."""


def gpu_of(ranks: Ranks) -> torch.device | None:
    """The GPU that the test has leased for this rank, any of the machine's; ranks may share it."""
    if not isinstance(ranks, RanksOfATest):
        return None
    return None if ranks.device.index is None else ranks.device


def current_ranks() -> Ranks:
    """The ranks of the running ddp test.

    Imported late, so that judges and mutants can be used without the plugin. Outside of a ddp
    test it raises the plugin's exception.
    """
    from pytest_ddp.fixture import current

    ranks: Ranks = current()
    return ranks


@contextmanager
def shared_directory(ranks: Ranks) -> Iterator[Path]:
    """A new folder that all ranks share, removed when all of them have left the block."""
    path = Path(ranks.gather(_new_directory() if ranks.rank == 0 else None)[0])
    try:
        yield path
        ranks.gather(None)
    finally:
        if ranks.rank == 0:
            shutil.rmtree(path, ignore_errors=True)


def _new_directory() -> str:
    # In multiprocessing's folder. In a rank the session owns and removes it, so the folders of a
    # rank that is killed are removed as well.
    return tempfile.mkdtemp(prefix="ddp-conformance-", dir=util.get_temp_dir())
