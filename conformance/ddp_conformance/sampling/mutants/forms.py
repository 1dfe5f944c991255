"""SMP: batches with an unusual form that is right."""

from __future__ import annotations

from typing import Any

import torch

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant
from ddp_conformance.sampling.subjects import Loader


def batches_of_no_samples(case: Case) -> list[dict[str, Any]]:
    """An empty batch on ranks without samples, with a column of no workers."""
    share = torch.tensor(range(case.rank, case.size, case.world_size), dtype=torch.int64)
    return [{"index": share, "worker": torch.full_like(share, -1)}]


def batches_with_annotators(case: Case) -> list[dict[str, Any]]:
    """The data set has a column ``worker`` with names of persons."""
    share = range(case.rank, case.size, case.world_size)
    return [{"index": list(share), "worker": [f"person {index % 3}" for index in share]}]


BENIGN_VARIANTS = (
    BenignVariant(
        Loader(batches_of_no_samples, {"exact", "evaluates"}), "an empty batch on some ranks"
    ),
    BenignVariant(Loader(batches_with_annotators, {"exact"}), "workers that are no numbers"),
)
