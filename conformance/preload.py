"""One forkserver for each rank, whatever a test's workers import.

Whoever starts multiprocessing's server first says what it imports, and the ranks outlive the
test: workers of all other loaders would then import Lightning or PyG one by one, for seconds.
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
    """From now on a server of this process imports all of it, once there is one."""
    forkserver.set_forkserver_preload(MODULES)
    forkserver.set_forkserver_preload = _nothing_else


def _nothing_else(modules_names: list[str]) -> None:
    """In the place of ``set_forkserver_preload``."""
