"""What the data module needs and refuses; who gets what is the matter of `make conformance`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from ddp_reference.resnet import data
from ddp_reference.resnet.agreement import ConfigError
from ddp_reference.resnet.data import ImageNetDataModule
from ddp_reference.resnet.images import Batch

Module = Callable[..., ImageNetDataModule]


@pytest.fixture
def module(dataset: Path, tmp_path: Path) -> Module:
    """Makes a prepared data module, batches of 4 unless given otherwise."""

    def make(root: Path = dataset, **arguments: object) -> ImageNetDataModule:
        defaults = {"batch_size": 4, "resolution": 16, "val_resolution": 16}
        index = tmp_path / "index.json"
        made = ImageNetDataModule(root, index=index, **(defaults | arguments))  # type: ignore[arg-type]
        made.prepare_data()
        made.setup("fit")
        return made

    return make


def indices(batches: list[Batch]) -> list[int]:
    return [index for batch in batches for index in batch.indices.tolist()]


def test_the_order_depends_on_the_seed(module: Module) -> None:
    orders = [indices(list(module(seed=seed).train_dataloader())) for seed in (1, 2)]
    assert orders[0] != orders[1]


def test_the_test_set_is_the_validation_set(module: Module) -> None:
    made = module()
    assert indices(list(made.test_dataloader())) == indices(list(made.val_dataloader()))


def test_an_error_of_prepare_data_waits_for_setup(tmp_path: Path) -> None:
    made = ImageNetDataModule(tmp_path / "nowhere")
    made.prepare_data()
    with pytest.raises(ConfigError, match=r"there is no folder .*nowhere/train"):
        made.setup("fit")


def test_more_ranks_than_images_are_refused(
    module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "rank_and_world_size", lambda: (0, 28))
    with pytest.raises(ConfigError, match="holds 27 images for 28 ranks"):
        module()


def test_the_index_lies_beside_the_data_by_default(dataset: Path, tmp_path: Path) -> None:
    root = shutil.copytree(dataset, tmp_path / "copy")
    ImageNetDataModule(root).prepare_data()
    assert (root / ".images.json").is_file()


def test_loaders_need_setup(dataset: Path) -> None:
    with pytest.raises(RuntimeError, match="setup"):
        ImageNetDataModule(dataset).train_dataloader()


@pytest.mark.parametrize(
    "arguments",
    [{"batch_size": 0}, {"num_workers": -1}, {"resolution": 7}, {"val_resolution": 0}],
)
def test_values_that_cannot_be_used_are_named(dataset: Path, arguments: dict[str, int]) -> None:
    (value,) = arguments.values()
    with pytest.raises(ConfigError, match=str(value)):
        ImageNetDataModule(dataset, **arguments)  # type: ignore[arg-type]
