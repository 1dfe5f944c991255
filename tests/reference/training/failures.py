"""Two ranks, of which the second fails; reports the exit code and last words of each.

``python failures.py DIRECTORY`` runs them all, ``failures.py DIRECTORY NAME`` is one rank of
torchrun's. By itself the ranks are forked from a process that has imported
everything and started nothing, and are launched by hand: torchrun would end the rank that
is left with a signal, and what it would have done by itself could not be seen.
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from ddp_reference.training.config import TrainConfig
from ddp_reference.training.lifecycle import run
from ddp_reference.training.loop import EpochReport, Event, Stepped
from ddp_reference.training.stages import STAGES
from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.multiprocessing.errors import record

EPOCHS = 2


def stumble() -> None:
    raise ArithmeticError("rank 1 stumbles")


# What rank 1 does at the third step, or, where said, after its last collective.
DEEDS: dict[str, Callable[[], object]] = {
    "raises": stumble,
    "raises late": stumble,
    "leaves with 0": lambda: sys.exit(0),
}


def observer(name: str, rank: int) -> Callable[[Event], None]:
    def observe(event: Event) -> None:
        early = isinstance(event, Stepped) and event.step == 3
        late = isinstance(event, EpochReport) and event.epoch == EPOCHS - 1
        if rank == 1 and (late if name.endswith("late") else early):
            DEEDS[name]()

    return observe


def be_rank(name: str, rank: int, directory: Path, port: Connection) -> None:
    words = os.open(directory / f"{name}.{rank}", os.O_CREAT | os.O_WRONLY)
    os.dup2(words, 1)
    os.dup2(words, 2)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port.recv()),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    train(name, rank, directory)


def train(name: str, rank: int, directory: Path) -> None:
    config = TrainConfig(
        samples=64, batch_size=16, epochs=EPOCHS, width=8, depth=1, data=directory / "data.pt"
    )
    run(STAGES["operator"], config, observer(name, rank))


def launch(name: str, directory: Path) -> list[int | None]:
    """Exit codes of both ranks."""
    context = multiprocessing.get_context("fork")
    ends = [context.Pipe(duplex=False) for _ in range(2)]
    ranks = [
        context.Process(target=be_rank, args=(name, rank, directory, ends[rank][0]))
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    # After the forks: the store has a thread.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for _, end in ends:
        end.send(store.port)
    for process in ranks:
        process.join(60)
    return [process.exitcode for process in ranks]


@record
def main(directory: Path, names: list[str]) -> None:
    if names:
        train(names[0], int(os.environ["RANK"]), directory)
    else:
        print(json.dumps({name: launch(name, directory) for name in DEEDS}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
