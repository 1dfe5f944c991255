"""Samplers of the Transformers Trainer, and the Trainer as a loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from ddp_conformance import Case, Leg, Sampler, Subject, TrainLoop, Watch

from conformance.ecosystem.frame.parts import Breach, Part, parametrize_with_parts

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

trainer_pt_utils = pytest.importorskip("transformers.trainer_pt_utils")


def transformers_shard(case: Case, *, drop_last: bool = False) -> Any:
    return trainer_pt_utils.ShardSampler(
        range(case.size),
        batch_size=1,
        drop_last=drop_last,
        num_processes=case.world_size,
        process_index=case.rank,
    )


def transformers_dropping_shard(case: Case) -> Any:
    return transformers_shard(case, drop_last=True)


class Stream:
    """All indices, to whoever asks."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))


def transformers_iterable_shard(case: Case) -> Any:
    return trainer_pt_utils.IterableDatasetShard(
        Stream(case.size),
        batch_size=1,
        num_processes=case.world_size,
        process_index=case.rank,
    )


def transformers_loop(case: Case) -> Any:
    return trainer_pt_utils.DistributedSamplerWithLoop(
        range(case.size), batch_size=1, num_replicas=case.world_size, rank=case.rank
    )


def transformers_length_grouped(case: Case, *, drop_last: bool = False) -> Any:
    return trainer_pt_utils.DistributedLengthGroupedSampler(
        batch_size=2,
        lengths=[1 + index % 7 for index in range(case.size)],
        num_replicas=case.world_size,
        rank=case.rank,
        drop_last=drop_last,
    )


def transformers_dropping_length_grouped(case: Case) -> Any:
    return transformers_length_grouped(case, drop_last=True)


def transformers_trainer(case: Case, leg: Leg, watch: Watch) -> None:
    from conformance.ecosystem.training import transformers_loops

    transformers_loops.trainer_fit(case, leg, watch)


PARTS = [
    Part(Sampler(transformers_shard, {"pads"}), "`ShardSampler(dataset, batch_size=1)`"),
    Part(
        Sampler(transformers_dropping_shard, {"drops"}),
        "`ShardSampler(dataset, batch_size=1, drop_last=True)`",
    ),
    Part(
        Sampler(transformers_iterable_shard, {"pads"}),
        "`IterableDatasetShard(stream, batch_size=1)`",
    ),
    Part(
        Sampler(transformers_loop, {"pads", "shuffles"}),
        "`DistributedSamplerWithLoop(dataset, batch_size=1)`",
    ),
    Part(
        Sampler(transformers_length_grouped, {"pads", "shuffles"}, min_size=1),
        "`DistributedLengthGroupedSampler(batch_size=2, lengths=lengths)`",
    ),
    Part(
        Sampler(transformers_dropping_length_grouped, {"drops", "shuffles"}, min_size=1),
        "`DistributedLengthGroupedSampler(batch_size=2, lengths=lengths, drop_last=True)`",
    ),
    Part(
        TrainLoop(
            transformers_trainer,
            {"pads", "resumes", "resumes_mid_epoch", "resumes_elsewhere"},
            batch_size=4,
        ),
        "`trainer.train(resume_from_checkpoint=folder)` with a folder of the Trainer",
        [
            Breach(
                ("DET-06",),
                "the position is a number of steps, and the samples of a step depend on the number "
                "of ranks: on another one it is another place, and maybe another epoch",
                "transformers/position.py",
            ),
            Breach(
                ("DET-07",),
                "without `optimizer.pt` it goes on with a fresh optimizer, and says nothing",
                "transformers/without_optimizer.py",
            ),
        ],
    ),
]


@parametrize_with_parts(PARTS)
def test_transformers(subject: Subject, check: BoundCheck) -> None:
    check(subject)
