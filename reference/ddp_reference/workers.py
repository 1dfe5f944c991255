"""How DataLoader workers are started in a process that may be a rank."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import BaseContext

import torch
import torch.distributed as dist


def worker_context(workers: int, preload: str) -> BaseContext | None:
    """The ``multiprocessing_context`` of a loader with ``workers`` workers.

    None, which leaves the choice to torch, without workers and in a process that is no rank.
    A rank's workers come from a forkserver, because a rank has threads that a fork cuts off
    in the middle of what they do:

    - Those of gloo take Python's lock on its thread states whenever they drop the last
      reference to a tensor. A worker that is forked at that moment inherits the lock as taken
      and waits for it inside ``os.fork`` for ever: python/cpython#112275, mended in 3.11.10.
    - NCCL and gloo over InfiniBand are not safe to fork at all, says torch of
      ``DistributedDataParallel``, and neither is CUDA.

    Args:
        workers: number of DataLoader workers.
        preload: name of the module that builds the loader. The server imports it once, and torch
            with it; else every worker of every new loader would, which takes seconds. A worker
            imports the program's own file too, but for that of ``python -m PACKAGE``.
    """
    if not workers or not (_has_group() or _has_cuda()):
        return None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload])
    return context


def _has_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _has_group() -> bool:
    return dist.is_available() and dist.is_initialized()
