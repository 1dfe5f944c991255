"""Streams and tables of Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from ddp_conformance import Case, Loader, Subject
from torch.utils.data import DataLoader

from conformance.ecosystem.frame.parts import Breach, Part, parametrize_with_parts

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

datasets = pytest.importorskip("datasets")
distributed = pytest.importorskip("datasets.distributed")


def examples(shards: Sequence[tuple[int, ...]]) -> Iterator[dict[str, int]]:
    """The samples of some shards."""
    for shard in shards:
        yield from ({"index": index} for index in shard)


def stream(case: Case, count: int) -> Any:
    shards = [tuple(range(first, case.size, count)) for first in range(count)]
    return datasets.IterableDataset.from_generator(examples, gen_kwargs={"shards": shards})


def datasets_split_examples(case: Case) -> Any:
    """Fewer shards than ranks: each rank skips the others' samples."""
    own = distributed.split_dataset_by_node(stream(case, 1), case.rank, case.world_size)
    return DataLoader(own, batch_size=2, num_workers=case.num_workers)


def datasets_split_shards(case: Case) -> Any:
    """Shards for all ranks."""
    whole = stream(case, 2 * case.world_size)
    own = distributed.split_dataset_by_node(whole, case.rank, case.world_size)
    return DataLoader(own, batch_size=2, num_workers=case.num_workers)


def datasets_unsplit(case: Case) -> Any:
    whole = stream(case, 2 * case.world_size)
    return DataLoader(whole, batch_size=2, num_workers=case.num_workers)


def table(case: Case) -> Any:
    return datasets.Dataset.from_dict({"index": list(range(case.size))})


def datasets_split_table(case: Case) -> Any:
    """A share of the rows for each rank."""
    own = distributed.split_dataset_by_node(table(case), case.rank, case.world_size)
    return DataLoader(own, batch_size=2, num_workers=case.num_workers)


def datasets_shard_in_turn(case: Case) -> Any:
    """Every so manieth row, as was the rule before version 3."""
    own = table(case).shard(case.world_size, case.rank, contiguous=False)
    return DataLoader(own, batch_size=2, num_workers=case.num_workers)


PARTS = [
    Part(
        Loader(datasets_split_examples, {"iterable", "uneven"}),
        "`split_dataset_by_node(stream, rank, world_size)`, one shard",
    ),
    Part(
        Loader(datasets_split_shards, {"iterable", "uneven"}),
        "`split_dataset_by_node(stream, rank, world_size)`, two shards for each rank",
    ),
    Part(
        Loader(datasets_split_table, {"exact", "uneven", "evaluates"}, min_size=1),
        "`split_dataset_by_node(table, rank, world_size)`, for evaluation",
        [
            Breach(
                ("SMP-01",),
                "with fewer rows than ranks those that get none raise, and the others go on",
                "datasets/fewer_rows.py",
            )
        ],
    ),
    Part(
        Loader(datasets_shard_in_turn, {"exact", "uneven", "evaluates"}),
        "`table.shard(world_size, rank, contiguous=False)`, for evaluation",
    ),
    Part(
        Loader(datasets_unsplit, {"iterable"}),
        "`DataLoader(stream)`, without `split_dataset_by_node`",
        [
            Breach(
                ("SMP-01", "SMP-05"),
                "shards are split over workers and not over ranks",
                "datasets/unsplit.py",
                "datasets#5360",
            )
        ],
    ),
]


@parametrize_with_parts(PARTS)
def test_datasets(subject: Subject, check: BoundCheck) -> None:
    check(subject)
