"""What the data module delivers to each rank."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
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


def train_batches(module: ImageNetDataModule, epoch: int = 0) -> list[Batch]:
    """The batches of one epoch, as a trainer in that epoch would get them."""
    module._epoch = lambda: epoch  # type: ignore[method-assign]
    return list(module.train_dataloader())


def indices(batches: list[Batch]) -> list[int]:
    return [index for batch in batches for index in batch.indices.tolist()]


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    monkeypatch.setattr(data, "rank_and_world_size", lambda: (rank, world_size))


@pytest.mark.parametrize("world_size", [1, 2, 4, 27])
def test_training_shards_are_disjoint_and_of_equal_length(
    module: Module, monkeypatch: pytest.MonkeyPatch, world_size: int
) -> None:
    shards = []
    for rank in range(world_size):
        as_rank(monkeypatch, rank, world_size)
        shards.append(train_batches(module()))
    delivered = [index for shard in shards for index in indices(shard)]
    assert len(delivered) == len(set(delivered)) == 27 - 27 % world_size
    assert len({tuple(len(batch.labels) for batch in shard) for shard in shards}) == 1


@pytest.mark.parametrize("world_size", [1, 2, 4, 20])
def test_validation_counts_each_image_once(
    module: Module, monkeypatch: pytest.MonkeyPatch, world_size: int
) -> None:
    shards: list[list[Batch]] = []
    for rank in range(world_size):
        as_rank(monkeypatch, rank, world_size)
        shards.append(list(module().val_dataloader()))
    assert sorted(i for shard in shards for i in indices(shard)) == list(range(17))
    assert len({len(shard) for shard in shards}) == 1


def test_the_order_is_a_function_of_seed_and_epoch(module: Module) -> None:
    first = indices(train_batches(module(seed=1), epoch=0))
    assert first == indices(train_batches(module(seed=1), epoch=0))
    assert first != indices(train_batches(module(seed=1), epoch=1))
    assert first != indices(train_batches(module(seed=2), epoch=0))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_deliver_the_same_images(module: Module) -> None:
    alone, with_workers = (train_batches(module(num_workers=n), epoch=1) for n in (0, 2))
    assert indices(alone) == indices(with_workers)
    for here, there in zip(alone, with_workers, strict=True):
        assert torch.equal(here.images, there.images)


def test_a_new_resolution_is_that_of_the_next_loader(module: Module) -> None:
    made = module()
    running = iter(made.train_dataloader())
    made.update_resolution(24)
    assert next(running).images.shape[-1] == 16
    assert next(iter(made.train_dataloader())).images.shape[-1] == 24
    assert next(iter(made.val_dataloader())).images.shape[-1] == 16


def test_loaders_and_data_sets_are_new_for_every_epoch(module: Module) -> None:
    made = module()
    first, second = made.train_dataloader(), made.train_dataloader()
    assert first is not second
    assert first.dataset is not second.dataset


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
    as_rank(monkeypatch, 0, 28)
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
