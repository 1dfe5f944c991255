"""The data module: found and checked once, split over the ranks, resized on request."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, DistributedSampler

from ddp_reference.resnet.agreement import (
    ConfigError,
    raise_together,
    rank_and_world_size,
    require_equal,
)
from ddp_reference.resnet.images import (
    Collate,
    EvalTransform,
    ImageDataset,
    Sample,
    TrainTransform,
)
from ddp_reference.resnet.index import ImageIndex, read_index
from ddp_reference.resnet.prepare import prepare_index
from ddp_reference.resnet.samplers import ExactBatches
from ddp_reference.workers import worker_context

MIN_RESOLUTION = 8
"""Pixels; images smaller than this show nothing. The model may ask for more."""


class ImageNetDataModule(LightningDataModule):
    """Images of ``root/train/CLASS`` and ``root/val/CLASS``, in batches of :class:`Batch`.

    Training: every rank gets equally many samples, no sample comes twice in an epoch,
    and the ``n mod ranks`` left over are others in each epoch. Validation and test
    (both on ``val``; ImageNet's own test set has no labels): every sample exactly once.

    The training loader is made for one epoch: its order, its random crops and its
    resolution are fixed when it is built. Use it with
    ``Trainer(reload_dataloaders_every_n_epochs=1, use_distributed_sampler=False)``.

    ``batch_size`` is per rank. ``index`` is the file that publishes the list of
    images, ``ROOT/.images.json`` by default. ``prepare_data_per_node`` is for copies
    of the data on each node's own disk. Raises :class:`ConfigError` for values that
    cannot be used, in the constructor, in :meth:`update_resolution` and in :meth:`setup`.
    """

    def __init__(
        self,
        root: str | Path,
        batch_size: int = 32,
        num_workers: int = 0,
        resolution: int = 224,
        val_resolution: int = 224,
        seed: int = 0,
        index: str | Path | None = None,
        check: bool = True,
        prepare_data_per_node: bool = False,
    ) -> None:
        super().__init__()
        if batch_size < 1 or num_workers < 0:
            raise ConfigError(
                f"batch_size={batch_size} must be at least 1 and num_workers={num_workers} "
                "at least 0"
            )
        self.root = Path(root)
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.resolution = _usable_resolution(resolution)
        self.val_resolution = _usable_resolution(val_resolution)
        self.seed = seed
        self.index_path = self.root / ".images.json" if index is None else Path(index)
        self.check = check
        self.prepare_data_per_node = prepare_data_per_node
        self.images: ImageIndex | None = None
        self._problem: str | None = None

    def prepare_data(self) -> None:
        """List and check the images; called by one process (per node, if so asked).

        What is wrong is kept for :meth:`setup`: an error raised here would stop this
        rank alone.
        """
        try:
            prepare_index(self.root, self.index_path, self.check)
        except ConfigError as error:
            self._problem = str(error)

    def setup(self, stage: str | None = None) -> None:
        """Read the list of images, on all ranks. Raises :class:`ConfigError` on all together."""
        raise_together(self._problem)
        images, problem = self._read()
        raise_together(problem)
        assert images is not None
        require_equal(f"the list of images in {self.index_path}", images.digest())
        self.images = images

    def _read(self) -> tuple[ImageIndex | None, str | None]:
        try:
            images = read_index(self.index_path)
        except ConfigError as error:
            return None, str(error)
        _, world_size = rank_and_world_size()
        if len(images.train) < world_size:
            return None, (
                f"{self.root / 'train'} holds {len(images.train)} images for {world_size} ranks; "
                "add images or use fewer devices"
            )
        return images, None

    def update_resolution(self, resolution: int) -> None:
        """Train on ``resolution`` x ``resolution`` pixels from the next training loader on.

        To be called on all ranks, between two epochs: the loader of an epoch exists
        before ``on_train_epoch_start`` and is not touched.
        """
        self.resolution = _usable_resolution(resolution)

    def train_dataloader(self) -> DataLoader[Sample]:
        """A new loader over a new data set for the epoch that comes next."""
        dataset = self.train_dataset(self._epoch())
        return DataLoader(
            dataset,
            batch_size=self.batch_size,
            sampler=self.train_sampler(dataset, self._epoch()),
            num_workers=self.num_workers,
            multiprocessing_context=worker_context(self.num_workers, preload=__name__),
            collate_fn=Collate(self.resolution),
            pin_memory=self._pin_memory(),
        )

    def train_dataset(self, epoch: int) -> ImageDataset:
        """The training images, cropped for ``epoch`` at the resolution in force."""
        transform = TrainTransform(self.resolution, self.seed, epoch)
        return ImageDataset(self.root, self._images().train, transform)

    def train_sampler(self, dataset: ImageDataset, epoch: int) -> DistributedSampler[Sample]:
        """This rank's share of ``epoch``'s order.

        The epoch is set here, because Lightning sets it only after the workers of a
        resumed run have been sent their first indices.
        """
        rank, world_size = rank_and_world_size()
        sampler: DistributedSampler[Sample] = DistributedSampler(
            dataset, world_size, rank, shuffle=True, seed=self.seed, drop_last=True
        )
        sampler.set_epoch(epoch)
        return sampler

    def val_dataloader(self) -> DataLoader[Sample]:
        """Each image of ``val`` on exactly one rank, at ``val_resolution`` in all epochs."""
        transform = EvalTransform(self.val_resolution)
        dataset = ImageDataset(self.root, self._images().val, transform)
        return DataLoader(
            dataset,
            batch_sampler=self.eval_batches(len(dataset)),
            num_workers=self.num_workers,
            multiprocessing_context=worker_context(self.num_workers, preload=__name__),
            collate_fn=Collate(self.val_resolution),
            pin_memory=self._pin_memory(),
        )

    def test_dataloader(self) -> DataLoader[Sample]:
        """Return the loader of :meth:`val_dataloader`."""
        return self.val_dataloader()

    def eval_batches(self, count: int) -> ExactBatches:
        """This rank's share of ``count`` samples for evaluation."""
        rank, world_size = rank_and_world_size()
        return ExactBatches(count, self.batch_size, rank, world_size)

    def _images(self) -> ImageIndex:
        if self.images is None:
            raise RuntimeError("call prepare_data() on one rank and setup() on all first")
        return self.images

    def _epoch(self) -> int:
        """The epoch that a loader built now is for; 0 without a trainer.

        ``trainer.current_epoch`` lags by one when a run resumes from an epoch's end.
        """
        if self.trainer is None:
            return 0
        # Lightning annotates a base class of the tracker that it puts there.
        progress = self.trainer.fit_loop.epoch_progress.current
        epoch: int = progress.processed  # type: ignore[attr-defined]
        return epoch

    def _pin_memory(self) -> bool:
        """Pinned memory makes copies to a GPU faster and warns where there is none."""
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"


def _usable_resolution(resolution: int) -> int:
    if resolution < MIN_RESOLUTION:
        raise ConfigError(f"resolution {resolution} is below {MIN_RESOLUTION} pixels")
    return resolution
