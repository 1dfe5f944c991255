"""The stateful loader of torchdata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ddp_conformance import Case, Loader, Sampler, Subject
from torch.utils.data import DistributedSampler

from conformance.ecosystem.frame.parts import Part, parametrize_with_parts

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


PARTS = [
    Part(
        Loader(torchdata_loader, {"pads", "shuffles"}),
        "`StatefulDataLoader(dataset, sampler=DistributedSampler(dataset))`",
    ),
    Part(Sampler(torchdata_sampler, {"pads", "shuffles"}), "`StatefulDistributedSampler(dataset)`"),
]


@parametrize_with_parts(PARTS)
def test_torchdata(subject: Subject, check: BoundCheck) -> None:
    check(subject)
