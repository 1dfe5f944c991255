"""No thread of a process group outlives it, whatever had held it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ddp_reference.leaving import leave_group
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LIMIT = 60.0
"""Seconds that the kernel may have a thread for longer than the one that joins it."""


def gloo_threads() -> list[str]:
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has ended
            names.append(path.read_text().strip())
    return [name for name in names if "gloo" in name]


def lasting_gloo_threads(before: int = 0) -> list[str]:
    """The threads of gloo that are there when there are no more than ``before``, or the limit is
    over.
    """
    deadline = time.monotonic() + LIMIT
    while len(threads := gloo_threads()) > before and time.monotonic() < deadline:
        time.sleep(0.01)
    return threads


def train() -> None:
    """One step of a model that is part of a reference cycle."""
    model = DistributedDataParallel(nn.Linear(2, 2))
    model.itself = [model]
    model(torch.ones(1, 2)).sum().backward()


def main(store: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store, 1), rank=0, world_size=1)
    train()
    assert gloo_threads()
    leave_group()
    assert lasting_gloo_threads() == []
    leave_group()  # there is none


def test_the_threads_of_a_group_end_with_it(tmp_path: Path) -> None:
    """The group is in a process of its own: what another test imports decides who holds the
    group."""
    subprocess.run([sys.executable, __file__, str(tmp_path / "store")], check=True, timeout=120)


if __name__ == "__main__":
    main(sys.argv[1])
