"""The reference's logs, guards and data modules: who writes, and who reads when."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from ddp_conformance import Case, Guard, Preparation, Subject, Writer, parametrize_with_checks
from ddp_reference.resnet.agreement import from_rank_zero
from ddp_reference.resnet.data import ImageNetDataModule
from ddp_reference.resnet.index import ImageFile, ImageIndex, read_index, write_index
from ddp_reference.resnet.make_data import make_data
from ddp_reference.resnet.run_logger import RunLogger
from ddp_reference.windows.make_data import ArchivePlan, make_archive

from conformance.writing.guards import resnet_guard, windows_guard

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

with warnings.catch_warnings():
    # PyG compiles with torch.jit when it is first imported, which torch 2.13 deprecates. The
    # warning is not ours to mend, and it is an error here.
    warnings.simplefilter("ignore", DeprecationWarning)
    from datetime import datetime

    from ddp_reference.windows.datamodule import GNNDataModule
    from ddp_reference.windows.textlog import TextLog

# ---------------------------------------------------------------- writers

LOG = "windows.log"


class WindowsLog:
    """The end of a run for each record."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.log = TextLog(case.directory / LOG)

    def __call__(self, number: int) -> None:
        trainer: Any = SimpleNamespace(is_global_zero=self.case.rank == 0, current_epoch=number)
        self.log.on_train_end(trainer, trainer)


def ends(directory: Path) -> list[int]:
    return [int(n) for n in re.findall(r"^end epoch=(\d+)$", (directory / LOG).read_text(), re.M)]


def log_file(writer: WindowsLog) -> tuple[Path, ...]:
    return (writer.log.path,)


class TensorBoard:
    """A scalar for each record, in a folder that rank 0 chooses."""

    def __init__(self, case: Case) -> None:
        self.logger = RunLogger(case.directory, "resnet")
        self.folder = Path(self.logger.log_dir)

    def __call__(self, number: int) -> None:
        self.logger.log_metrics({"loss": 1.0}, step=number)
        self.logger.close()


def run_folder(writer: TensorBoard) -> tuple[Path, ...]:
    return (writer.folder,)


INDEX = "index.json"


def make_images(case: Case) -> None:
    """Two classes, an odd number of images in each split."""
    make_data(case.directory / "data", classes=2, train=case.size, val=case.size, size=8)
    for split in ("train", "val"):
        next((case.directory / "data" / split).glob("*/*.jpg")).unlink()


class PublishedIndex:
    """A list of images, one more for each record, as rank 0 publishes it."""

    def __init__(self, case: Case) -> None:
        self.path = case.directory / INDEX

    def __call__(self, number: int) -> None:
        images = tuple(ImageFile(f"{n}.jpg", 0, 1, 1) for n in range(number + 1))
        index = ImageIndex(("class",), images, images, checked=True)
        from_rank_zero(lambda: write_index(self.path, index))


def listed_images(directory: Path) -> list[int]:
    path = directory / INDEX
    return [len(read_index(path).train) - 1] if path.exists() else []


# ---------------------------------------------------------------- data modules


def image_data(case: Case) -> ImageNetDataModule:
    return ImageNetDataModule(case.directory / "data", batch_size=2, resolution=8, val_resolution=8)


def make_days(case: Case) -> None:
    plan = ArchivePlan(datetime(2024, 1, 1), days=8, bin_hours=24, stations=6)
    make_archive(case.directory / "archive", plan)


def window_data(case: Case) -> GNNDataModule:
    dates = ("2024-01-01", "2024-01-06", "2024-01-06", "2024-01-09")
    return GNNDataModule(case.directory / "archive", *dates, batch_size=2)


SUBJECTS = [
    Writer(WindowsLog, {"tells_paths"}, records=ends, paths=log_file),
    Writer(TensorBoard, {"tells_paths"}, paths=run_folder),
    Writer(PublishedIndex, {"published", "replaces"}, records=listed_images),
    Guard(resnet_guard),
    Guard(windows_guard),
    Preparation(image_data, prepare=make_images),
    Preparation(window_data, prepare=make_days),
]


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning")
@parametrize_with_checks(SUBJECTS, world_size=(1, 2, 3), share_ranks=True)
def test_reference(subject: Subject, check: BoundCheck) -> None:
    check(subject)
