"""What a shared cache costs in memory: ``python -m benchmarks memory``.

Two ranks, each with DataLoader workers that have read the whole cache, once with a cache of
512 MiB and once with one of a few KiB. Proportional set sizes are added up: a page that six
processes map counts a sixth for each, so that the sum counts it once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from ddp_reference.cache import LatentCache, Recipe, open_on_all_ranks
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

RANKS = 2
COLUMNS = 1024
_LIMIT = 600
_MIB = 1 << 20


class WholeCache(Dataset[float]):
    """Each item reads everything there is."""

    def __init__(self, cache: LatentCache) -> None:
        self.cache = cache

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> float:
        return sum(float(self.cache.tensor(key).sum()) for key in self.cache.keys)


def produce(rows: int) -> dict[str, Tensor]:
    """``rows`` samples of 4 KiB."""
    return {"latent": torch.arange(rows * COLUMNS, dtype=torch.float32).reshape(rows, COLUMNS)}


def total(mib: float, workers: int) -> int:
    """Proportional set size of all ranks and workers, in bytes, that read a cache of ``mib``.

    Raises:
        RuntimeError: a rank failed; its output is the message.
    """
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}")
    with tempfile.TemporaryDirectory(prefix="ddp-memory-") as directory:
        done = subprocess.run(
            [
                sys.executable,
                *launcher,
                "-m",
                "benchmarks.memory",
                directory,
                str(mib),
                str(workers),
            ],
            env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{done.stdout}\n{done.stderr}")
        return sum(json.loads(path.read_text()) for path in Path(directory).glob("rank*.json"))


def be_rank(directory: Path, mib: float, workers: int) -> None:
    """Read the cache with all workers, and leave the memory of this rank and them."""
    dist.init_process_group("gloo")
    rows = max(1, round(mib * _MIB / (4 * COLUMNS)))
    recipe = Recipe(partial(produce, rows), "benchmark")
    with open_on_all_ranks(directory / "cache.pt", recipe=recipe) as cache:
        loader = DataLoader(
            WholeCache(cache), batch_size=1, num_workers=workers, persistent_workers=True
        )
        for _ in loader:
            pass
        dist.barrier()  # all processes hold the memory while it is measured
        own = sum(pss(pid) for pid in (os.getpid(), *children(os.getpid())))
        (directory / f"rank{dist.get_rank()}.json").write_text(json.dumps(own))
        dist.barrier()
    dist.destroy_process_group()


def pss(pid: int) -> int:
    """Proportional set size in bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def report(mib: float) -> list[str]:
    """The lines of the table."""
    empty, full, more = total(0, 2), total(mib, 2), total(mib, 4)
    adds = (full - empty) / (mib * _MIB)
    return [
        f"| cache of {mib:.0f} MiB, {RANKS} ranks x 2 workers, all having read all of it | |",
        "|---|--:|",
        _row("all processes, with a cache of 4 KiB", f"{empty / _MIB:.0f} MiB"),
        _row("all processes, with the cache", f"{full / _MIB:.0f} MiB"),
        _row("what the cache adds, to its size", f"x {adds:.2f}"),
        _row("one further worker", f"{(more - full) / (2 * RANKS * _MIB):.0f} MiB"),
    ]


def _row(what: str, value: str) -> str:
    return f"| {what} | {value} |"


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory", description=__doc__)
    parser.add_argument("--mib", type=float, default=512.0, help="size of the cache")
    parser.add_argument("--quick", action="store_true", help="a cache of 32 MiB")
    given = parser.parse_args(arguments)
    print("\n".join(report(32.0 if given.quick else given.mib)))


if __name__ == "__main__":
    be_rank(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
