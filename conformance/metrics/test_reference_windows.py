"""The windows' metrics are those of a single process over the graphs of all ranks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import torch
from ddp_conformance import Case, Evaluation, Subject, parametrize_with_checks
from ddp_conformance.windows.trainer_runs import UnwrappedStrategy, advice_ignored, quiet_trainer
from ddp_reference.windows.make_data import ArchivePlan, make_archive

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

with warnings.catch_warnings():
    # PyG compiles with torch.jit when it is first imported, which torch 2.13 deprecates. The
    # warning is not ours to mend, and it is an error here.
    warnings.simplefilter("ignore", DeprecationWarning)
    from ddp_reference.windows.archive import organize_bins_times
    from ddp_reference.windows.datamodule import GNNDataModule
    from ddp_reference.windows.dataset import BinDataset
    from ddp_reference.windows.model import WindowGNN
    from torch_geometric.data import Batch

FIRST_DAY = datetime(2024, 1, 1)


def make_days(case: Case) -> None:
    """A graph for each day."""
    plan = ArchivePlan(FIRST_DAY, days=case.size, bin_hours=24, stations=6)
    make_archive(case.directory / "archive", plan)


def last_day(case: Case) -> datetime:
    return FIRST_DAY + timedelta(days=case.size)


def untrained(features: int) -> WindowGNN:
    """A model that is not trained, with the same weights on all ranks."""
    torch.manual_seed(0)
    return WindowGNN(features, hidden=4)


def windows_validation(case: Case) -> Callable[[], Mapping[str, float]]:
    """A validation by the Trainer."""
    dates = (FIRST_DAY, last_day(case))
    data = GNNDataModule(case.directory / "archive", *dates, *dates, batch_size=2)
    data.setup("validate")
    model = untrained(data.val.dataset[0].x.shape[1])

    def validate() -> Mapping[str, float]:
        with advice_ignored():
            trainer = quiet_trainer(case, UnwrappedStrategy(), [])
            (report,) = trainer.validate(model, datamodule=data, verbose=False)
        return report

    return validate


def windows_alone(case: Case) -> Mapping[str, float]:
    """Each graph once, one after the other, in float64."""
    summary = organize_bins_times(case.directory / "archive", FIRST_DAY, last_day(case))
    dataset = BinDataset(list(summary), summary)
    model = untrained(dataset[0].x.shape[1]).double()
    squares = []
    for graph in (dataset[index] for index in range(len(dataset))):
        graph.x = graph.x.double()
        with torch.no_grad():
            predicted = model(Batch.from_data_list([graph]))
        squares.append(float(predicted - graph.y) ** 2)
    loss = math.fsum(squares) / len(squares)
    return {"val_loss": loss, "val_rmse": math.sqrt(loss)}


SUBJECTS = [
    Evaluation(windows_validation, reference=windows_alone, prepare=make_days, tolerance=1e-4)
]


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning")
@parametrize_with_checks(SUBJECTS, world_size=(3,), share_ranks=True)
def test_reference(subject: Subject, check: BoundCheck) -> None:
    check(subject)
