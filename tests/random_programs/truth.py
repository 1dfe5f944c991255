"""What random programs do with gloo alone, without the plugin.

``python -m tests.random_programs.truth FIRST COUNT`` runs the programs of these seeds in three
processes, many at a time in threads, each on groups of its own, and prints a line of JSON: the
fate by seed. No message of a program is for any rank that is ready, so that its fate does not
depend on time.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import multiprocessing

from tests.random_programs.interpreter import perform
from tests.random_programs.programs import RANKS, Program, make

ENDS, FAILS, HANGS = "ends", "fails", "hangs"
AT_A_TIME = 25
_LIMIT = 6.0
"""Seconds that a group waits before it gives up: a hundred times what a program takes."""


def _fate(program: Program, rank: int, groups: Any, fates: dict[int, str]) -> None:
    began = time.monotonic()
    try:
        perform(program, rank, groups, 0)
        fates[program.seed] = ENDS
    except RuntimeError:
        # A rank whose peer gave up gets an error at that moment.
        fates[program.seed] = HANGS if time.monotonic() - began > _LIMIT / 2 else FAILS


def _rank(rank: int, port: int, first: int, count: int) -> None:
    store = dist.TCPStore("127.0.0.1", port)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(RANKS))
    fates: dict[int, str] = {}
    for start in range(first, first + count, AT_A_TIME):
        threads, made = [], []
        for seed in range(start, min(start + AT_A_TIME, first + count)):
            program, limit = make(seed), timedelta(seconds=_LIMIT)
            groups = {each: dist.new_group(list(each), limit) for each in program.groups}
            made += groups.values()
            threads.append(threading.Thread(target=_fate, args=(program, rank, groups, fates)))
        dist.barrier()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        dist.barrier()
        for group in made:  # each has threads and connections
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)
        dist.barrier()
    found: list[Any] = [None] * len(RANKS)
    dist.all_gather_object(found, fates)
    if rank == 0:
        worst = {
            seed: max((of_rank[seed] for of_rank in found), key=(ENDS, FAILS, HANGS).index)
            for seed in fates
        }
        print(json.dumps(worst), flush=True)
    dist.barrier()
    # Groups that have given up are not taken down in order.
    os._exit(0)


def main() -> None:
    first, count = map(int, sys.argv[1:])
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    multiprocessing.spawn(_rank, (store.port, first, count), len(RANKS))


if __name__ == "__main__":
    main()
