"""The reference's moving windows keep every guarantee that applies to them."""

from __future__ import annotations

import warnings
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from ddp_conformance import Case, DataModule, Loader, Subject, parametrize_with_checks
from ddp_conformance.windows.data import WindowRun
from ddp_reference.windows.make_data import ArchivePlan, make_archive

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

with warnings.catch_warnings():
    # PyG compiles with torch.jit when it is first imported, which torch 2.13 deprecates. The
    # warning is not ours to mend, and it is an error here.
    warnings.simplefilter("ignore", DeprecationWarning)
    from ddp_reference.windows.callbacks import ResampleDataCallback, SequentialDataCallback
    from ddp_reference.windows.datamodule import GNNDataModule

FIRST_DAY = datetime(2024, 1, 1)
DATES = ("2024-01-01", "2024-01-09", "2024-01-09", "2024-01-13")


def make_days(case: Case) -> None:
    """Twelve days of one bin each."""
    plan = ArchivePlan(FIRST_DAY, days=12, bin_hours=24, stations=6)
    make_archive(case.directory / "archive", plan)


def data(case: Case) -> GNNDataModule:
    """Training and validation windows of three days: an odd number of samples.

    Workers are forked: the plugin sees to it that the rank's other threads sleep meanwhile, and
    a forkserver would import torch, Lightning and PyG anew for each rank and test.
    """
    dates = ("2024-01-01", "2024-01-04", "2024-01-09", "2024-01-12")
    root = case.directory / "archive"
    workers = case.num_workers
    context = "fork" if workers else None
    return GNNDataModule(
        root, *dates, batch_size=1, num_workers=workers, multiprocessing_context=context
    )


def sliding_windows(case: Case) -> WindowRun:
    return WindowRun(data(case), [SequentialDataCallback(*DATES[:2], 3, 2)])


def random_windows(case: Case) -> WindowRun:
    return WindowRun(data(case), [ResampleDataCallback(*DATES, 3, 3, "random", seed=7)])


def both_resampled(case: Case) -> WindowRun:
    callback = ResampleDataCallback(*DATES, 3, 3, "sequential", resample_val=True)
    return WindowRun(data(case), [callback])


def second_day_each(epoch: int) -> str:
    """Windows of :func:`sliding_windows`: three epochs do not reach the end of the dates."""
    start = 1 + 2 * epoch
    return f"2024-01-{start:02}T00:00/2024-01-{start + 3:02}T00:00"


SUBJECTS = [
    DataModule(
        sliding_windows,
        {"fixed_validation", "scheduled"},
        prepare=make_days,
        schedule=second_day_each,
    ),
    DataModule(random_windows, {"fixed_validation"}, prepare=make_days),
    DataModule(both_resampled, prepare=make_days),
]


def make_samples(case: Case) -> None:
    """A day for each sample."""
    plan = ArchivePlan(FIRST_DAY, days=case.size, bin_hours=24, stations=6)
    make_archive(case.directory / "archive", plan)


def window_loader(case: Case) -> Any:
    """The training loader of one window, its workers started as the case says."""
    dates = (FIRST_DAY, FIRST_DAY + timedelta(days=case.size))
    module = GNNDataModule(
        case.directory / "archive",
        *dates,
        *dates,
        batch_size=2,
        num_workers=case.num_workers,
        multiprocessing_context=case.start_method,
    )
    module.setup("fit")
    return module.train_dataloader()


def sample_ids(batch: Any) -> tuple[int, ...]:
    return tuple(batch.sample_id.tolist())


LOADERS = [
    Loader(
        window_loader, {"pads", "shuffles", "tells_rank"}, prepare=make_samples, indices=sample_ids
    )
]


@parametrize_with_checks(LOADERS, world_size=(2,), share_ranks=True)
def test_loader(subject: Subject, check: BoundCheck) -> None:
    check(subject)


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning")
@parametrize_with_checks(SUBJECTS, world_size=(1, 2, 4), share_ranks=True)
def test_windows(subject: Subject, check: BoundCheck) -> None:
    check(subject)
