"""What two ranks with two workers each see of one cache; run by torchrun, reports as JSON.

``torchrun --nproc-per-node 2 ranks.py DIRECTORY MIB``: MIB is the size of the cache whose
memory is measured.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from ddp_reference.cache import CacheError, LatentCache, Recipe, open_on_all_ranks, publish
from ddp_reference.workers import worker_context
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Reading(Dataset[Tensor]):
    """Item i reads the *whole* shared memory and gives its sum and the reader's pid."""

    def __init__(self, cache: LatentCache) -> None:
        self.cache = cache

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        total = sum(float(self.cache.tensor(key).sum()) for key in self.cache.keys)
        return torch.tensor([total, os.getpid()], dtype=torch.float64)


def produce(journal: Path, rows: int) -> dict[str, Tensor]:
    with journal.open("a") as file:
        file.write(f"{dist.get_rank()}\n")
    return {"latent": torch.arange(rows * 1024, dtype=torch.float32).reshape(rows, 1024) % 97}


def fail() -> dict[str, Tensor]:
    raise ZeroDivisionError("no samples today")


def pss(pid: int) -> int:
    return int(psutil.Process(pid).memory_full_info().pss)


def segment_pss(pid: int) -> int:
    maps = psutil.Process(pid).memory_maps()
    return sum(m.pss for m in maps if m.path.startswith("/dev/shm/#"))


def measure(cache: LatentCache) -> dict[str, object]:
    """One epoch with two workers, and the memory of this rank and them at its end."""
    context = worker_context(2, preload="ddp_reference.cache")
    loader = DataLoader(
        Reading(cache), 1, num_workers=2, persistent_workers=True, multiprocessing_context=context
    )
    seen = torch.cat(list(loader))
    readers = sorted({int(pid) for pid in seen[:, 1]})
    dist.barrier()  # all processes of all ranks hold the memory while it is measured
    memory = [(pss(pid), segment_pss(pid)) for pid in (os.getpid(), *readers)]
    dist.barrier()
    return {
        "sums": sorted(set(seen[:, 0].tolist())),
        "readers": readers,
        "pss": sum(whole for whole, _ in memory),
        "segment": sum(segment for _, segment in memory),
    }


def attempt(act: Callable[[], LatentCache]) -> dict[str, object]:
    try:
        with act() as cache:
            return {"count": len(cache), "digest": cache.digest}
    except (CacheError, RuntimeError, ZeroDivisionError) as error:
        return {"error": type(error).__name__, "text": str(error)}


def report(directory: Path, mib: int) -> Iterator[tuple[str, dict[str, object]]]:
    recipes = {
        rows: Recipe(partial(produce, directory / f"built{rows}", rows), "ranks")
        for rows in (1, mib * 256)
    }
    with open_on_all_ranks(directory / "small.pt", recipe=recipes[1]) as small:
        yield "small", measure(small)
    with open_on_all_ranks(directory / "large.pt", recipe=recipes[mib * 256]) as large:
        yield "large", {**measure(large), "count": len(large), "digest": large.digest}
        large.verify()
    open_file = partial(open_on_all_ranks, directory / "large.pt", segment_dir=None)
    yield "file", attempt(open_file)
    cut = directory / "cut.pt"
    if dist.get_rank() == 0:
        cut.write_bytes((directory / "small.pt").read_bytes()[:3000])
    dist.barrier()
    yield "cut", attempt(partial(open_on_all_ranks, cut))
    nobody = partial(open_on_all_ranks, directory / "none.pt", recipe=Recipe(fail, "never"))
    yield "producer", attempt(nobody)
    # Two machines with two local files of one name, as far as the ranks can see.
    publish._machine = lambda: f"machine {dist.get_rank()}"
    own = directory / ("small.pt" if dist.get_rank() == 0 else "large.pt")
    yield "different", attempt(partial(open_on_all_ranks, own))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    target = Path(sys.argv[1])
    results = dict(report(target, int(sys.argv[2])))
    (target / f"rank{dist.get_rank()}.json").write_text(json.dumps(results))
    dist.destroy_process_group()
