"""LIF-03: programs in which ranks remove each other's files, and some that may."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Timer

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from ddp_conformance.lifecycle.mutants.programs import RATE, Net, fit, make_loader, own_rank

EPOCHS = 2
EXCHANGE = Path("exchange.pt")
WORK = 0.5
"""Seconds of a rank's own work, so that undisturbed ranks meet at no file."""


def train_and(after: Callable[[int, nn.Module], None]) -> None:
    """Two epochs, and what all ranks do with the model after each."""
    dist.init_process_group("gloo")
    loader = make_loader()
    torch.manual_seed(0)
    model = Net()
    wrapped = DistributedDataParallel(model)
    optimizer = SGD(model.parameters(), RATE)
    for epoch in range(EPOCHS):
        fit(wrapped, optimizer, loader)
        after(epoch, model)
    dist.destroy_process_group()


def save_and_wait(model: nn.Module, path: Path) -> None:
    """Save on rank 0; all ranks go on when it is there."""
    if own_rank() == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()


def work_on(ranks: range) -> None:
    """Evaluate something on some of the ranks."""
    end = time.monotonic() + WORK
    while own_rank() in ranks and time.monotonic() < end:
        torch.ones(8).sum()


FIRST, OTHERS, NO_RANK = range(1), range(1, 64), range(0)


def remove_old(missing_ok: bool, busy: range = OTHERS) -> Callable[[int, nn.Module], None]:
    """Every rank removes all checkpoints but the last one, some after work of their own."""

    def after(epoch: int, model: nn.Module) -> None:
        save_and_wait(model, Path(f"step_{epoch}.pt"))
        work_on(busy)
        for old in sorted(Path().glob("step_*.pt"))[:-1]:
            old.unlink(missing_ok=missing_ok)

    return after


def all_remove_old() -> None:
    """``unlink`` on every rank: a late rank finds nothing to remove."""
    train_and(remove_old(missing_ok=False))


def all_remove_at_once() -> None:
    """``unlink`` on every rank of what it has just seen."""
    train_and(remove_old(missing_ok=False, busy=NO_RANK))


def all_remove_at_once_if_there() -> None:
    """Correct: what is missing is fine."""
    train_and(remove_old(missing_ok=True, busy=NO_RANK))


def all_rename_best() -> None:
    """Every rank gives the last checkpoint another name, if it is there."""

    def after(epoch: int, model: nn.Module) -> None:
        last = Path("last.pt")
        save_and_wait(model, last)
        work_on(OTHERS)
        if last.exists():
            last.rename("best.pt")
        dist.barrier()

    train_and(after)


def removed_under_reader() -> None:
    """Rank 0 takes the file away when it has no use for it, and others may."""

    def after(epoch: int, model: nn.Module) -> None:
        save_and_wait(model, EXCHANGE)
        work_on(FIRST)
        if own_rank() == 0:
            EXCHANGE.unlink()
        else:
            model.load_state_dict(torch.load(EXCHANGE))

    train_and(after)


def removed_after_a_while() -> None:
    """Rank 0 leaves the others half a second to read the file that it has read."""

    def after(epoch: int, model: nn.Module) -> None:
        save_and_wait(model, EXCHANGE)
        model.load_state_dict(torch.load(EXCHANGE))
        if own_rank() == 0:
            Event().wait(WORK)
            EXCHANGE.unlink()

    train_and(after)


def removed_by_a_timer() -> None:
    """The same by a timer, and by a process that removes it, while rank 0 trains on."""
    timers: list[Timer] = []

    def after(epoch: int, model: nn.Module) -> None:
        exchange = f"exchange-{epoch}.pt"
        save_and_wait(model, Path(exchange))
        model.load_state_dict(torch.load(exchange))
        if own_rank() == 0:
            timers.append(Timer(WORK, subprocess.run, [["rm", exchange]]))
            timers[-1].start()

    train_and(after)
    for timer in timers:
        timer.join()


def removed_before_a_look() -> None:
    """Each rank looks whether the file is there, and rank 0 takes it away when it has looked."""

    def after(epoch: int, model: nn.Module) -> None:
        save_and_wait(model, EXCHANGE)
        with torch.no_grad():
            next(model.parameters()).mul_(0.5 if EXCHANGE.exists() else 1.0)
        if own_rank() == 0:
            Event().wait(WORK)
            EXCHANGE.unlink()

    train_and(after)


def remove_in_peace() -> None:
    """Correct: what is missing is fine, and rank 0 waits until all have read.

    Their logs are in a folder that is named by their parent, which all of them have.
    """
    remove = remove_old(missing_ok=True)
    logs = Path(f"logs-{os.getppid()}")

    def after(epoch: int, model: nn.Module) -> None:
        remove(epoch, model)
        (logs / str(own_rank())).mkdir(parents=True, exist_ok=True)
        save_and_wait(model, EXCHANGE)
        assert len(list(logs.iterdir())) == dist.get_world_size()
        if EXCHANGE.exists():
            model.load_state_dict(torch.load(EXCHANGE))
        dist.barrier()
        if own_rank() == 0:
            Event().wait(0.1)
            EXCHANGE.rename("read.pt")
            Path("read.pt").unlink()

    train_and(after)
