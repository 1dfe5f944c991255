"""The reference's loaders with workers, its samplers of images, and its resolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ddp_conformance import (
    Case,
    DataModule,
    Loader,
    Sampler,
    Subject,
    parametrize_with_checks,
)
from ddp_conformance.windows.data import Announcement, Split, Stamp, WindowRun
from ddp_reference.resnet.data import ImageNetDataModule
from ddp_reference.resnet.images import Batch
from ddp_reference.resnet.make_data import make_data
from ddp_reference.resnet.resolution import ResolutionSchedule, ResolutionScheduleCallback
from ddp_reference.resnet.samplers import ExactBatches
from ddp_reference.saliency import Item, mit1003_loader_hdf5
from ddp_reference.saliency.make_data import make_data as make_stimuli
from ddp_reference.saliency.mit1003_loader_hdf5 import create_mit1003_dataloaders
from torch.utils.data import DistributedSampler

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck
    from torch.utils.data import DataLoader

# ---------------------------------------------------------------- saliency, HDF5 with workers

SIZE = (8, 6)


def make_hdf5(case: Case) -> None:
    """A file for a split in halves of ``case.size`` samples each."""
    make_stimuli(case.directory, 2 * case.size, SIZE)
    mit1003_loader_hdf5.convert(case.directory, case.directory / "all.h5", SIZE)


def hdf5_with_workers(case: Case) -> DataLoader[Item]:
    """The validation loader with two workers, forked when the rank has read from the file."""
    _, loader = create_mit1003_dataloaders(
        case.directory / "all.h5",
        batch_size=2,
        num_workers=2,
        image_size=SIZE,
        world_size=case.world_size,
        rank=case.rank,
        val_fraction=0.5,
    )
    assert loader.dataset[0]["index"] == 0
    return loader


# ---------------------------------------------------------------- images


def image_train_sampler(case: Case) -> DistributedSampler[Item]:
    return ImageNetDataModule(case.directory).train_sampler(case.dataset, 0)


def image_eval_batches(case: Case) -> ExactBatches:
    return ImageNetDataModule(case.directory, batch_size=2).eval_batches(case.size)


SCHEDULE = ResolutionSchedule.parse("0:8,1:12,2:16")
SIDES = ("8", "12", "16")


def make_images(case: Case) -> None:
    make_data(case.directory / "data", classes=1, train=case.size, val=case.size, size=8)


def resized_images(case: Case) -> WindowRun:
    """The resolution that is delivered stands for the window that a sample comes from."""
    data = ImageNetDataModule(
        case.directory / "data",
        batch_size=2,
        num_workers=case.num_workers,
        resolution=8,
        val_resolution=8,
    )
    callbacks = [ResolutionScheduleCallback(SCHEDULE)]
    return WindowRun(data, callbacks, use_distributed_sampler=False)


def sides_of(batch: Batch) -> tuple[Stamp, ...]:
    side = str(batch.images.shape[-1])
    return tuple(Stamp(int(index), side, SIDES.index(side)) for index in batch.indices)


def announced_side(data: ImageNetDataModule, split: Split) -> Announcement:
    side = str(data.resolution if split == "train" else data.val_resolution)
    return Announcement(side, SIDES.index(side))


def scheduled_side(epoch: int) -> str:
    return SIDES[epoch]


SAMPLERS = [
    Sampler(image_train_sampler, {"drops", "shuffles"}),
    Sampler(image_eval_batches, {"exact", "evaluates"}),
]


@parametrize_with_checks(SAMPLERS, share_ranks=True)
def test_samplers(subject: Subject, check: BoundCheck) -> None:
    check(subject)


LOADERS = [
    Loader(hdf5_with_workers, {"exact", "uneven", "evaluates"}, prepare=make_hdf5),
]


@parametrize_with_checks(LOADERS, world_size=(2,), share_ranks=True)
def test_loaders(subject: Subject, check: BoundCheck) -> None:
    check(subject)


RESOLUTIONS = [
    DataModule(
        resized_images,
        {"scheduled", "fixed_validation"},
        prepare=make_images,
        stamps=sides_of,
        announced=announced_side,
        schedule=scheduled_side,
    )
]


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning")
@parametrize_with_checks(RESOLUTIONS, world_size=(2,), share_ranks=True)
def test_resolutions(subject: Subject, check: BoundCheck) -> None:
    check(subject)
