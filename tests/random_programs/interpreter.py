"""Runs a rank's part of a random program with torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from tests.random_programs.programs import Program, Step

Groups = Mapping[tuple[int, ...], Any]


def perform(program: Program, rank: int, groups: Groups, pause: float) -> None:
    """Do all steps of a rank; sleeps take ``pause`` seconds."""
    works = {}
    for step in program.steps[rank]:
        if step.do == "sleep":
            time.sleep(pause)
        elif step.do == "wait":
            works.pop(step.event).wait()
        elif step.waits:
            _begin(step, program.numel, rank, groups, async_op=False)
        else:
            works[step.event] = _begin(step, program.numel, rank, groups, async_op=True)
    for work in works.values():
        work.wait()


def _begin(step: Step, numel: int, rank: int, groups: Groups, *, async_op: bool) -> Any:
    group, tensor = groups[step.group], torch.ones(numel)
    size, is_root = len(step.group), step.peer == rank
    pieces = [torch.ones(numel) for _ in range(size)]
    if step.do in ("send", "recv"):
        name = f"i{step.do}" if async_op else step.do
        return getattr(dist, name)(tensor, step.peer, group=group)
    calls: dict[str, Callable[[], Any]] = {
        "broadcast": lambda: dist.broadcast(tensor, step.peer, group, async_op),
        "reduce": lambda: dist.reduce(tensor, step.peer, group=group, async_op=async_op),
        "scatter": lambda: dist.scatter(
            tensor, pieces if is_root else None, step.peer, group, async_op
        ),
        "gather": lambda: dist.gather(
            tensor, pieces if is_root else None, step.peer, group, async_op
        ),
        "barrier": lambda: dist.barrier(group, async_op),
        "all_gather": lambda: dist.all_gather(pieces, tensor, group, async_op),
        "broadcast_object_list": lambda: dist.broadcast_object_list([1], step.peer, group),
        "gather_object": lambda: dist.gather_object(
            1, [None] * size if is_root else None, step.peer, group
        ),
    }
    return calls[step.do]()
