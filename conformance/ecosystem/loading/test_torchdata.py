"""The stateful loader of torchdata, and loops that resume from its state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from ddp_conformance import Case, Leg, Loader, Sampler, Subject, TrainLoop, Watch
from torch import nn
from torch.utils.data import DistributedSampler

from conformance.ecosystem.frame.loops import Loop, random_states, restore
from conformance.ecosystem.frame.parts import Breach, Part, parametrize_with_parts

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

stateful = pytest.importorskip("torchdata.stateful_dataloader")
samplers = pytest.importorskip("torchdata.stateful_dataloader.sampler")


def torchdata_loader(case: Case) -> Any:
    sampler: Any = DistributedSampler(case.dataset, case.world_size, case.rank)
    return stateful.StatefulDataLoader(
        case.dataset, batch_size=2, sampler=sampler, num_workers=case.num_workers
    )


def torchdata_sampler(case: Case) -> Any:
    return samplers.StatefulDistributedSampler(case.dataset, case.world_size, case.rank)


class StatefulLoop(Loop):
    """Saves each rank's position in the data, and gives it back to the same number of ranks."""

    def __init__(self, case: Case, leg: Leg, watch: Watch) -> None:
        super().__init__(case, leg, watch)
        self.states: Any = None
        self.sampler = samplers.StatefulDistributedSampler(case.dataset, case.world_size, case.rank)
        self.loader = stateful.StatefulDataLoader(
            case.dataset, batch_size=4, sampler=self.sampler, num_workers=case.num_workers
        )

    def batches_left(self) -> Iterator[tuple[Sequence[int], int]]:
        self.sampler.set_epoch(self.epoch)
        batches = iter(self.loader)
        if self.states is not None:  # the whole run made its iterator before, which draws a number
            restore(self.states, self.case)
            self.states = None
        for batch in batches:
            indices = batch["index"].tolist()
            yield indices, len(indices) * self.case.world_size

    def position(self) -> Any:
        positions: list[Any] = [None] * self.case.world_size
        if not dist.is_initialized():
            return [self.loader.state_dict()]
        dist.all_gather_object(positions, self.loader.state_dict())
        return positions

    def restore_position(self, positions: Any) -> None:
        self.loader.load_state_dict(positions[self.case.rank])

    def save(self, path: Any) -> None:
        content = {
            "model": bare(self.model).state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": (self.epoch, self.batches, self.steps),
            "position": self.position(),
            "random": random_states(),
        }
        if self.case.rank == 0:
            torch.save(content, path)
        if dist.is_initialized():
            dist.barrier()

    def load(self, path: Any) -> None:
        content = torch.load(path, weights_only=False)
        bare(self.model).load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.epoch, self.batches, self.steps = content["progress"]
        restore(content["random"], self.case)
        if self.batches:  # an exhausted loader's state would make the next epoch empty
            self.restore_position(content["position"])
            self.states = content["random"]


class FirstPositionLoop(StatefulLoop):
    """Gives rank 0's position to all ranks, however many there are."""

    def restore_position(self, positions: Any) -> None:
        self.loader.load_state_dict(positions[0])


def bare(model: nn.Module) -> nn.Module:
    return getattr(model, "module", model)


def torchdata_loop(case: Case, leg: Leg, watch: Watch) -> None:
    StatefulLoop(case, leg, watch).run()


def torchdata_moving_loop(case: Case, leg: Leg, watch: Watch) -> None:
    FirstPositionLoop(case, leg, watch).run()


RESUMES = {"pads", "resumes", "resumes_mid_epoch"}

PARTS = [
    Part(
        Loader(torchdata_loader, {"pads", "shuffles"}),
        "`StatefulDataLoader(dataset, sampler=DistributedSampler(dataset))`",
    ),
    Part(Sampler(torchdata_sampler, {"pads", "shuffles"}), "`StatefulDistributedSampler(dataset)`"),
    Part(
        TrainLoop(torchdata_loop, RESUMES),
        "`loader.state_dict()` of each rank's `StatefulDataLoader`, and `load_state_dict`",
    ),
    Part(
        TrainLoop(torchdata_moving_loop, RESUMES | {"resumes_elsewhere"}),
        "the same with rank 0's state for any number of ranks",
        [
            Breach(
                ("DET-06",),
                "it counts a rank's samples, and does not say of how many ranks: on fewer of them "
                "samples come again, on more of them some are left out",
                "torchdata/position.py",
                "Automodel#533",
            )
        ],
    ),
]


@parametrize_with_parts(PARTS)
def test_torchdata(subject: Subject, check: BoundCheck) -> None:
    check(subject)
