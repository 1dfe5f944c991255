"""Measures without which ranks gloo cannot end a rank's wait: a plain program on five ranks.

For each case, a group of its own runs one operation in which one member takes no part, and then
once in which all do. A wait that the absence of a member keeps from its end needs that member.
Nothing of pytest-ddp is imported. It prints a line of JSON for each wait that was measured.
"""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import multiprocessing

RANKS = 5
ROUNDS = 5
"""Seconds without the end of any wait after which those that are left are taken to have none."""
LARGE = 9 << 18
"""Elements of float32 of which gloo makes nine segments; of smaller ones it makes two a rank."""


class Case(NamedTuple):
    """An operation in which a member takes no part; -1 for none."""

    operation: str
    size: int
    root: int
    numel: int
    absent: int


ROOTED = ("broadcast", "scatter", "gather")
OTHERS = (
    *("all_reduce", "all_reduce_coalesced", "all_reduce_sparse", "reduce_scatter"),
    *("reduce_scatter_tensor", "all_gather", "all_gather_into_tensor", "all_gather_coalesced"),
    *("all_to_all", "all_to_all_single", "all_to_all_without_splits", "barrier"),
)


def cases() -> Iterator[Case]:
    """One root for each: whom others need follows by rotation, except in a reduction."""
    settings = [(operation, 4, 1, 4) for operation in (*ROOTED, "reduce")]
    settings += [("broadcast", size, root, 4) for size, root in ((2, 1), (3, 2), (5, 3))]
    settings += [("broadcast", 3, 0, numel) for numel in (0, 1 << 20)]
    settings += [("reduce", 4, root, 1) for root in range(4)]
    settings += [("reduce", 3, 0, 0), ("reduce", 3, 2, 3), ("reduce", 4, 2, LARGE)]
    settings += [(operation, 3, -1, 4) for operation in OTHERS]
    settings += [(operation, 2, -1, 0) for operation in ("all_reduce", "all_gather_into_tensor")]
    for operation, size, root, numel in settings:
        # Where all do the same, one that is absent shows whether the others need it.
        for absent in (*range(size if root >= 0 else 1), -1):
            yield Case(operation, size, root, numel, absent)


def begin(case: Case, group: Any, rank: int) -> Any:
    """Begin the operation of a case, and return its handle."""
    size, numel, root, more = case.size, case.numel, case.root, {"group": group, "async_op": True}
    one, whole = torch.ones(numel), torch.ones(numel * size)
    pieces = [torch.ones(numel) for _ in range(size)]
    mine, none = (pieces if rank == root else None), [torch.ones(0) for _ in range(size)]
    indices = torch.arange(numel).reshape(1, -1)
    calls: dict[str, Callable[[], Any]] = {
        "broadcast": lambda: dist.broadcast(one, group_src=root, **more),
        "scatter": lambda: dist.scatter(one, mine, group_src=root, **more),
        "gather": lambda: dist.gather(one, mine, group_dst=root, **more),
        "reduce": lambda: dist.reduce(one, group_dst=root, **more),
        "all_reduce": lambda: dist.all_reduce(one, **more),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([one, one.clone()], **more),
        "all_reduce_sparse": lambda: dist.all_reduce(
            torch.sparse_coo_tensor(indices, one, check_invariants=True), **more
        ),
        "reduce_scatter": lambda: dist.reduce_scatter(one, pieces, **more),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(one, whole, **more),
        "all_gather": lambda: dist.all_gather(pieces, one, **more),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, one, **more),
        "all_gather_coalesced": lambda: dist.all_gather_coalesced(
            [[piece] for piece in pieces], [one], **more
        ),
        "all_to_all": lambda: dist.all_to_all(pieces, [one.clone() for _ in pieces], **more),
        "all_to_all_single": lambda: dist.all_to_all_single(whole, whole.clone(), **more),
        "all_to_all_without_splits": lambda: dist.all_to_all(none, none, **more),
        "barrier": lambda: dist.barrier(**more),
    }
    return calls[case.operation]()


def measure(rank: int, port: int) -> None:
    """Begin all cases, and note which waits end."""
    store = dist.TCPStore("127.0.0.1", port)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    every, waits, names = list(cases()), {}, {}
    for case in every:
        group: Any = dist.new_group(list(range(case.size)))
        if rank < case.size and rank != case.absent:
            waits[case] = threading.Thread(target=begin(case, group, rank).wait, daemon=True)
            waits[case].start()
            names[group.group_name] = case
    controls = [wait for case, wait in waits.items() if case.absent < 0]
    seen: list[Any] = []
    still = 0
    while still < ROUNDS:
        time.sleep(1)
        now = sum(map(is_alive, waits.values())), any(map(is_alive, controls))
        before, seen = seen, [None] * RANKS
        # All ranks look: one of them may have had to wait for the processor.
        dist.all_gather_object(seen, now)
        still = still + 1 if seen == before and not any(late for _, late in seen) else 0
    ends = {case: not is_alive(wait) for case, wait in waits.items()}
    found: list[Any] = [None] * RANKS
    dist.all_gather_object(found, (ends, dict(recorded(names))))
    if rank == 0:
        for line in lines(every, found):
            print(json.dumps(line), flush=True)
    dist.barrier()
    os._exit(0)  # most groups have a wait without an end


is_alive = threading.Thread.is_alive


def recorded(names: dict[str, Case]) -> Iterator[tuple[Case, tuple[str, int | None]]]:
    """What torch's flight recorder has of each case: a name and a number of elements."""
    for entry in pickle.loads(torch._C._distributed_c10d._dump_fr_trace(True, False, False))[
        "entries"
    ]:
        case = names.get(entry["process_group"][0])
        if case is not None:
            sizes = entry["input_sizes"]
            numel = sum(torch.Size(size).numel() for size in sizes) if sizes else None
            yield case, (entry["profiling_name"].partition(":")[2], numel)


def lines(every: list[Case], found: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield each wait with the members that were absent, and those whose absence kept it from its
    end."""
    for case in every:
        if case.absent >= 0:
            continue
        for rank in range(case.size):
            ends, names = found[rank]
            tried = range(case.size if case.root >= 0 else 1)
            lacking = [case._replace(absent=other) for other in tried if other != rank]
            name, numel = names[case]
            yield case._asdict() | {
                "rank": rank,
                "recorded_as": name,
                "recorded_numel": numel,
                "tried": [each.absent for each in lacking],
                "needs": [each.absent for each in lacking if not ends[each]],
            }


def main() -> None:
    """Measure with all ranks as processes."""
    warnings.simplefilter("ignore")
    os.environ["TORCH_FR_BUFFER_SIZE"] = "5000"
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    multiprocessing.spawn(measure, (store.port,), RANKS)


if __name__ == "__main__":
    main()
