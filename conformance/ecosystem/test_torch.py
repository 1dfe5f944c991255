"""Samplers, loaders, wrappers and savers of torch."""

from __future__ import annotations

import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ddp_conformance import (
    Callback,
    Case,
    Leg,
    Loader,
    Sampler,
    Subject,
    TrainLoop,
    TrainStep,
    Watch,
    Writer,
)
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, get_worker_info

from conformance.ecosystem.frame.loops import Loop, random_states, restore
from conformance.ecosystem.frame.models import CentredNet, Net, evaluating, stepping, wrapped
from conformance.ecosystem.frame.parts import Breach, Part, parametrize_with_parts
from conformance.ecosystem.frame.writers import saved_by_rank_0

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

with warnings.catch_warnings():
    # It compiles with torch.jit when it is first imported, which torch 2.13 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch.distributed.optim import ZeroRedundancyOptimizer

# ---------------------------------------------------------------- samplers and loaders


def torch_padding_sampler(case: Case) -> DistributedSampler[Any]:
    return DistributedSampler(case.dataset, case.world_size, case.rank, shuffle=True)


def torch_dropping_sampler(case: Case) -> DistributedSampler[Any]:
    return DistributedSampler(case.dataset, case.world_size, case.rank, drop_last=True)


def torch_validation_loader(case: Case) -> DataLoader[Any]:
    sampler = DistributedSampler(case.dataset, case.world_size, case.rank, shuffle=False)
    return DataLoader(case.dataset, batch_size=2, sampler=sampler)


def torch_training_loader(case: Case) -> DataLoader[Any]:
    sampler = torch_padding_sampler(case)
    return DataLoader(case.dataset, batch_size=2, sampler=sampler, num_workers=case.num_workers)


def seed_worker(worker_id: int) -> None:
    """Seed a worker as the page on reproducibility has it."""
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def torch_reproducible_loader(case: Case) -> DataLoader[Any]:
    return DataLoader(
        case.dataset,
        batch_size=2,
        sampler=torch_padding_sampler(case),
        num_workers=case.num_workers,
        worker_init_fn=seed_worker,
        generator=torch.Generator().manual_seed(0),
    )


class Split(IterableDataset[dict[str, int]]):
    """Each worker reads a part of its own, as the docstring of IterableDataset has it."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[dict[str, int]]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return ({"index": index} for index in range(first, self.size, step))


def torch_iterable_loader(case: Case) -> DataLoader[Any]:
    return DataLoader(Split(case.size), batch_size=2, num_workers=case.num_workers)


# ---------------------------------------------------------------- models


def torch_ddp(case: Case) -> tuple[nn.Module, Callable[[int], None]]:
    model = wrapped(case, Net())
    return model, stepping(case, model)


def torch_zero(case: Case) -> tuple[nn.Module, Callable[[int], None]]:
    model = wrapped(case, Net())
    if case.world_size == 1:
        return model, stepping(case, model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    return model, stepping(case, model, optimizer)


def torch_buffers(case: Case) -> Any:
    """Evaluated without the wrapper, as for a loop of evaluation that knows of no DDP."""
    model = wrapped(case, CentredNet())
    bare = getattr(model, "module", model)
    return model, stepping(case, model), evaluating(case, model, bare), bare.state_dict


def torch_fully_shard(case: Case) -> tuple[nn.Module, Callable[[int], None]]:
    model = Net()
    if case.world_size > 1:
        fully_shard(model)
    return model, stepping(case, model)


def torch_plateau(case: Case) -> Iterator[dict[str, float]]:
    """The schedule gets the loss of its own rank, as in a loop for one process."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedule = ReduceLROnPlateau(optimizer, patience=0)
    for epoch in range(3):
        optimizer.step()
        schedule.step(float(epoch if case.rank else -epoch))
        yield {"lr": optimizer.param_groups[0]["lr"]}


# ---------------------------------------------------------------- checkpoints


def torch_dcp(case: Case) -> Callable[[int], None]:
    model = Net()

    def write(number: int) -> None:
        state = {"model": model.state_dict(), "number": torch.tensor(number)}
        dcp.save(state, checkpoint_id=case.directory / f"step-{number}")

    return write


def saved_steps(directory: Path) -> list[int]:
    """The steps of the checkpoints that have their metadata, which are written last."""
    found = [metadata.parent for metadata in sorted(directory.glob("step-*/.metadata"))]
    return [int(loaded(checkpoint)["number"]) for checkpoint in found]


def loaded(checkpoint: Path) -> dict[str, Any]:
    state = {"model": Net().state_dict(), "number": torch.tensor(-1)}
    dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    return state


def torch_save(case: Case) -> Callable[[int], None]:
    state = Net().state_dict()

    def save(number: int) -> None:
        torch.save({**state, "number": torch.tensor(number)}, case.directory / "model.pt")

    return saved_by_rank_0(case, save)


def saved_number(directory: Path) -> list[int]:
    return [int(torch.load(directory / "model.pt", weights_only=True)["number"])]


# ---------------------------------------------------------------- loops


class DcpLoop(Loop):
    """Under FSDP2, with model and optimizer saved as torch's page on DCP has it."""

    flatten = False

    def wrapped(self, model: nn.Module) -> nn.Module:
        return fully_shard(model) if dist.is_initialized() else model

    def state(self) -> dict[str, Any]:
        options = StateDictOptions(flatten_optimizer_state_dict=self.flatten)
        model, optimizer = get_state_dict(self.model, self.optimizer, options=options)
        position = torch.tensor([self.epoch, self.batches, self.steps])
        states = pickle.dumps(random_states())
        return {"model": model, "optimizer": optimizer, "position": position, "random": states}

    def save(self, path: Any) -> None:
        dcp.save(self.state(), checkpoint_id=path)

    def load(self, path: Any) -> None:
        state = self.state()
        dcp.load(state, checkpoint_id=path)
        options = StateDictOptions(flatten_optimizer_state_dict=self.flatten)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=options,
        )
        self.epoch, self.batches, self.steps = state["position"].tolist()
        restore(pickle.loads(state["random"]), self.case)


class FlatDcpLoop(DcpLoop):
    """The optimizer's state by names, and not by numbers of groups."""

    flatten = True


def torch_dcp_loop(case: Case, leg: Leg, watch: Watch) -> None:
    DcpLoop(case, leg, watch).run()


def torch_flat_dcp_loop(case: Case, leg: Leg, watch: Watch) -> None:
    FlatDcpLoop(case, leg, watch).run()


MOVES = {"resumes", "resumes_mid_epoch", "resumes_elsewhere", "global_batch"}
EARLY_STATE = Breach(
    ("DET-08",),
    "before the first step `get_state_dict` makes one with gradients of zero, which Adam counts",
    "torch/early_state.py",
    "pytorch#164929",
)

PARTS = [
    Part(
        Sampler(torch_padding_sampler, {"pads", "shuffles"}),
        "`DistributedSampler(dataset, shuffle=True)`",
    ),
    Part(
        Sampler(torch_dropping_sampler, {"drops", "shuffles"}),
        "`DistributedSampler(dataset, drop_last=True)`",
    ),
    Part(
        Loader(torch_validation_loader, {"pads", "evaluates"}),
        "`DataLoader(sampler=DistributedSampler(dataset, shuffle=False))`, for evaluation",
        [
            Breach(
                ("SMP-03",),
                "DistributedSampler repeats samples so that all ranks get equally many",
                "torch/validation_loader.py",
                "pytorch#25162",
            )
        ],
    ),
    Part(
        Loader(torch_training_loader, {"pads", "shuffles", "augments"}),
        "`DataLoader(sampler=DistributedSampler(dataset))`, with and without workers",
    ),
    Part(
        Loader(torch_reproducible_loader, {"pads", "shuffles", "augments"}),
        "the same with `worker_init_fn=seed_worker, generator=g` of the page on reproducibility",
        [
            Breach(
                ("SMP-07",),
                "one seed for the loaders of all ranks gives their workers the same augmentation",
                "torch/reproducible_loader.py",
            )
        ],
    ),
    Part(
        Loader(torch_iterable_loader, {"iterable"}),
        "`IterableDataset` split by `get_worker_info()`, as its docstring has it",
        [
            Breach(
                ("SMP-01", "SMP-05"),
                "it splits by worker and not by rank: each rank reads the whole stream",
                "torch/iterable_loader.py",
            )
        ],
    ),
    Part(TrainStep(torch_ddp), "`DistributedDataParallel(model)` with AdamW"),
    Part(
        TrainStep(torch_zero),
        "`ZeroRedundancyOptimizer(parameters, AdamW)` under DDP",
        undecided={"MOD-11": "whose state one process cannot take over"},
    ),
    Part(
        TrainStep(torch_buffers, {"buffers"}),
        "`DistributedDataParallel(model)`, and `ddp.module(x)` and `ddp.module.state_dict()`",
        [
            Breach(
                ("MOD-04",),
                "buffers are sent before a pass of the wrapper, and are each rank's own after it",
                "torch/buffers.py",
            )
        ],
    ),
    Part(TrainStep(torch_fully_shard), "`fully_shard(model)` (FSDP2) with AdamW"),
    Part(
        Callback(torch_plateau, {"decides"}),
        "`ReduceLROnPlateau.step(loss)` with the loss of the rank",
        [
            Breach(
                ("CBK-02",),
                "the schedule makes no reduction: each rank has a rate of its own",
                "torch/plateau.py",
            )
        ],
    ),
    Part(
        Writer(torch_dcp, {"published"}, records=saved_steps),
        "`torch.distributed.checkpoint.save(state, checkpoint_id=folder)`",
    ),
    Part(
        TrainLoop(torch_dcp_loop, MOVES),
        "`dcp.save` and `dcp.load` of `get_state_dict(model, optimizer)` under FSDP2",
        [EARLY_STATE],
    ),
    Part(
        TrainLoop(torch_flat_dcp_loop, MOVES),
        "the same with `flatten_optimizer_state_dict=True`",
        [EARLY_STATE],
    ),
    Part(
        Writer(torch_save, {"published", "replaces"}, records=saved_number),
        "`torch.save(state, path)` on rank 0, then `barrier()`",
        [
            Breach(
                ("WRT-02",),
                "it writes in place: who reads while it writes, or after it failed, reads a part",
                "torch/save_in_place.py",
            )
        ],
    ),
]


@parametrize_with_parts(PARTS, share_ranks=True)
def test_torch(subject: Subject, check: BoundCheck) -> None:
    check(subject)
