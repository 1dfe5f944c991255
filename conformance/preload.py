"""One forkserver for each rank, whatever a test's workers import.

The first test that starts multiprocessing's server decides what it imports, and the server lives
as long as the rank: workers of all later loaders would import Lightning or PyG one by one, which
takes seconds.
"""

from __future__ import annotations

from multiprocessing import forkserver

MODULES = [
    "ddp_conformance.api",
    "ddp_reference.resnet.images",
    "ddp_reference.saliency.mit1003_loader_hdf5",
    "ddp_reference.training.data",
]


def install() -> None:
    """Have a server that this process starts from now on import all of these modules."""
    forkserver.set_forkserver_preload(MODULES)
    forkserver.set_forkserver_preload = _nothing_else


def _nothing_else(modules_names: list[str]) -> None:
    """Replaces ``set_forkserver_preload``."""
