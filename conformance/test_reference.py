"""The reference keeps every guarantee that applies to it, at world sizes 1 to 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddp_conformance import Case, Loader, Subject, parametrize_with_checks
from ddp_reference.saliency import Item, create_mit1003_dataloaders
from ddp_reference.saliency.make_data import make_data

if TYPE_CHECKING:
    from ddp_conformance.pytest_frontend import BoundCheck
    from torch.utils.data import DataLoader

SIZE = (8, 6)


def make_images(case: Case) -> None:
    """Files for a split in halves of ``case.size`` samples each."""
    make_data(case.directory, 2 * case.size, SIZE)


def saliency(case: Case) -> tuple[DataLoader[Item], DataLoader[Item]]:
    return create_mit1003_dataloaders(
        case.directory,
        batch_size=2,
        num_workers=case.num_workers,
        image_size=SIZE,
        world_size=case.world_size,
        rank=case.rank,
        val_fraction=0.5,
    )


def saliency_train(case: Case) -> DataLoader[Item]:
    return saliency(case)[0]


def saliency_val(case: Case) -> DataLoader[Item]:
    return saliency(case)[1]


SUBJECTS = [
    Loader(saliency_train, {"pads", "shuffles", "augments"}, prepare=make_images),
    Loader(saliency_val, {"exact", "uneven", "evaluates"}, prepare=make_images),
]


@parametrize_with_checks(SUBJECTS)
def test_reference(subject: Subject, check: BoundCheck) -> None:
    check(subject)
