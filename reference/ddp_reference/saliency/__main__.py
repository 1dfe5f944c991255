"""Train on MIT1003: ``python -m ddp_reference.saliency DATA --epochs N``, or under torchrun."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from ddp_reference.leaving import leave_group
from ddp_reference.saliency.dataset import DatasetError
from ddp_reference.saliency.trainer import Config, Trainer
from ddp_reference.saying import say_once


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing, which under torchrun every rank would do."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help")


def parse(arguments: Sequence[str] | None) -> Config:
    """The command line as a configuration; raises ValueError for a wrong one."""
    parser = _Parser(
        prog="python -m ddp_reference.saliency",
        description="Train a small saliency network on MIT1003, on one rank or under torchrun.",
    )
    parser.add_argument("data", type=Path, help="folder of image files, or HDF5 file")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=8, help="for each rank (default 8)")
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--size", type=int, nargs=2, default=(64, 48), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=42)
    # Not --log: torchrun takes it for an abbreviation of its own options.
    parser.add_argument("--log-file", type=Path, help="file for one line of JSON per epoch")
    options = parser.parse_args(arguments)
    if options.batch_size < 1 or min(options.size) < 1 or not options.learning_rate > 0:
        raise ValueError("--batch-size, --size and --learning-rate must be more than 0")
    if options.epochs < 0 or options.num_workers < 0:
        raise ValueError("--epochs and --num-workers must be at least 0")
    return Config(
        data_path=options.data,
        epochs=options.epochs,
        batch_size=options.batch_size,
        num_workers=options.num_workers,
        image_size=(options.size[0], options.size[1]),
        learning_rate=options.learning_rate,
        seed=options.seed,
        log=options.log_file,
    )


@contextmanager
def process_group() -> Iterator[tuple[int, int, torch.device]]:
    """World size, rank and device of this process; a process group if torchrun started it."""
    if "LOCAL_RANK" not in os.environ:
        yield 1, 0, torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return
    local_rank = int(os.environ["LOCAL_RANK"])
    # The number of GPUs is the same for all ranks of a machine, so they agree on the backend.
    on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", local_rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    try:
        yield dist.get_world_size(), dist.get_rank(), device
    finally:
        leave_group()


def _complain(text: str) -> None:
    print(f"error: {text}", file=sys.stderr, flush=True)


def train(config: Config, world_size: int, rank: int, device: torch.device) -> int:
    """Train and print; returns the exit code."""
    try:
        trainer = Trainer(config, world_size, rank, device)
    except DatasetError as error:
        text = str(error)  # the same on all ranks
        say_once(lambda: _complain(text), is_first=rank == 0)
        return 2
    try:
        for result in trainer.fit():
            if rank == 0:
                print(
                    f"epoch {result.epoch}: training loss {result.train_loss:.4f}, "
                    f"validation loss {result.val_loss:.4f}, NSS {result.val_nss:.3f}",
                    flush=True,
                )
    except DatasetError as error:  # of a file that this rank alone has read
        # From a worker it comes with the worker's traceback; the message is the last line.
        message = str(error).splitlines()[-1].rpartition("DatasetError: ")[2]
        print(f"error on rank {rank}: {message}", file=sys.stderr)
        return 2
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    config, problem = None, ""
    try:
        config = parse(arguments)
    except ValueError as error:  # the same on all ranks
        problem = str(error)
    with process_group() as (world_size, rank, device):
        if config is not None:
            return train(config, world_size, rank, device)
        say_once(lambda: _complain(problem), is_first=rank == 0)
        return 2


if __name__ == "__main__":
    sys.exit(main())
