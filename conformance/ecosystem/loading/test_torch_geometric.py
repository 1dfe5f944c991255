"""Loaders of PyG."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from ddp_conformance import Case, Loader, Subject
from torch.utils.data import DistributedSampler

from conformance.ecosystem.frame.parts import Part, parametrize_with_parts

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

with warnings.catch_warnings():
    # As in test_lightning.py: torch.jit, at the first import.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.data import Data
    from torch_geometric.loader import DataListLoader, DataLoader


def graphs(case: Case) -> list[Data]:
    """Each of another number of nodes, with its own number."""
    return [
        Data(x=torch.zeros(index % 4 + 1, 1), number=torch.tensor([index]))
        for index in range(case.size)
    ]


def sampler(case: Case) -> DistributedSampler[Any]:
    return DistributedSampler(range(case.size), case.world_size, case.rank)


def pyg_loader(case: Case) -> Any:
    return DataLoader(
        graphs(case), batch_size=2, sampler=sampler(case), num_workers=case.num_workers
    )


def pyg_list_loader(case: Case) -> Any:
    return DataListLoader(
        graphs(case), batch_size=2, sampler=sampler(case), num_workers=case.num_workers
    )


def numbers_of(batch: Any) -> tuple[int, ...]:
    parts = batch if isinstance(batch, list) else [batch]
    return tuple(int(number) for part in parts for number in part.number)


PARTS = [
    Part(
        Loader(pyg_loader, {"pads", "shuffles"}, indices=numbers_of),
        "`loader.DataLoader(graphs, sampler=DistributedSampler(graphs))`",
    ),
    Part(
        Loader(pyg_list_loader, {"pads", "shuffles"}, indices=numbers_of),
        "`loader.DataListLoader(graphs, sampler=DistributedSampler(graphs))`",
    ),
]


@parametrize_with_parts(PARTS, share_ranks=True)
def test_torch_geometric(subject: Subject, check: BoundCheck) -> None:
    check(subject)
