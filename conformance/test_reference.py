"""The reference keeps every guarantee that applies to it, at world sizes 1 to 4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddp_conformance import Case, Loader, Subject, parametrize_with_checks
from ddp_reference.saliency import Item, create_mit1003_dataloaders, mit1003_loader_hdf5
from ddp_reference.saliency.make_data import make_data
from ddp_reference.saliency.mit1003_loader_hdf5 import (
    create_mit1003_dataloaders as hdf5_loaders,
)

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck
    from torch.utils.data import DataLoader

SIZE = (8, 6)


def make_images(case: Case) -> None:
    """Files for a split in halves of ``case.size`` samples each."""
    make_data(case.directory, 2 * case.size, SIZE)


def make_hdf5(case: Case) -> None:
    """Make the data as one HDF5 file."""
    make_images(case)
    mit1003_loader_hdf5.convert(case.directory, case.directory / "all.h5", SIZE)


def options(case: Case) -> dict[str, Any]:
    return {
        "batch_size": 2,
        "num_workers": case.num_workers,
        "image_size": SIZE,
        "world_size": case.world_size,
        "rank": case.rank,
        "val_fraction": 0.5,
    }


def saliency_train(case: Case) -> DataLoader[Item]:
    return create_mit1003_dataloaders(case.directory, **options(case))[0]


def saliency_val(case: Case) -> DataLoader[Item]:
    return create_mit1003_dataloaders(case.directory, **options(case))[1]


def hdf5_train(case: Case) -> DataLoader[Item]:
    return hdf5_loaders(case.directory / "all.h5", **options(case))[0]


def hdf5_val(case: Case) -> DataLoader[Item]:
    return hdf5_loaders(case.directory / "all.h5", **options(case))[1]


TRAINING = {"pads", "shuffles", "augments"}
VALIDATION = {"exact", "uneven", "evaluates"}

SUBJECTS = [
    Loader(saliency_train, TRAINING, prepare=make_images),
    Loader(saliency_val, VALIDATION, prepare=make_images),
    Loader(hdf5_train, TRAINING, prepare=make_hdf5),
    Loader(hdf5_val, VALIDATION, prepare=make_hdf5),
]


@parametrize_with_checks(SUBJECTS, share_ranks=True)
def test_reference(subject: Subject, check: BoundCheck) -> None:
    check(subject)
