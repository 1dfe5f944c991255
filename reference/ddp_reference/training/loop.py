"""The training loop that the four stages share: epochs, micro-batches, steps, evaluation."""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from ddp_reference.cache.format import digest_tensor

from .checkpoint import Progress, full_model_state, save_checkpoint
from .config import TrainConfig
from .data import BatchPlan, EpochSampler, mix, seed_workers
from .distributed import World
from .stages import Batch, Stage
from .wrap import (
    autocast,
    clip_gradients,
    counts_losses,
    gradient_sync,
    send_buffers,
    send_optimizer_state,
)


@dataclass(frozen=True, slots=True)
class Begun:
    """All is made, wrapped and loaded; the first step comes next.

    ``save``: writes a checkpoint of the run, now and after each step; every rank must call.
    """

    model: nn.Module
    dataset: Dataset[dict[str, Tensor]]
    save: Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class Delivered:
    """A micro-batch has reached this rank's model: sample ids, and 0 for padding in weights."""

    epoch: int
    batch: int
    ids: tuple[int, ...]
    weights: tuple[float, ...]
    training: bool


@dataclass(frozen=True, slots=True)
class Stepped:
    """The optimizer has stepped; ``norm`` is that of the gradient of all ranks."""

    epoch: int
    step: int
    norm: float


@dataclass(frozen=True, slots=True)
class EpochReport:
    """An epoch's end, equal on all ranks: mean loss of its samples, each counted once."""

    epoch: int
    step: int
    loss: float
    validation_loss: float
    seconds: float


Event = Begun | Delivered | Stepped | EpochReport
Observer = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Split:
    """One rank's way through a part of the data."""

    plan: BatchPlan
    sampler: EpochSampler
    loader: DataLoader[dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Run:
    """All that the loop works with. ``identity``: what a checkpoint must have in common."""

    stage: Stage
    config: TrainConfig
    world: World
    model: nn.Module
    optimizer: Optimizer
    training: Split
    validation: Split
    progress: Progress
    identity: Mapping[str, object]
    observe: Observer


@dataclass(frozen=True, slots=True)
class Summary:
    """What came out, equal on all ranks. ``digest``: sha256 per parameter and buffer."""

    epochs: tuple[EpochReport, ...]
    finished: bool
    digest: Mapping[str, str]


def fit(run: Run) -> Summary:
    """Train from where ``run.progress`` stands to the last epoch, or to ``max_steps``."""
    reports: list[EpochReport] = []
    finished = True
    run.observe(Begun(run.model, run.training.loader.dataset, partial(_save, run)))
    while finished and run.progress.epoch < run.config.epochs:
        begun = time.monotonic()
        finished = _train_epoch(run)
        if finished:
            reports.append(_end_epoch(run, begun))
    if run.config.checkpoint is not None:
        _save(run, run.config.checkpoint)
    state = full_model_state(run.model)
    return Summary(tuple(reports), finished, {k: digest_tensor(v.cpu()) for k, v in state.items()})


def _train_epoch(run: Run) -> bool:
    """False if ``max_steps`` ended it before its time."""
    split, progress = run.training, run.progress
    split.sampler.set_epoch(progress.epoch)
    split.sampler.begin_at(progress.batches)
    seed_workers(split.loader, mix(run.config.seed, run.world.rank, progress.epoch))
    run.model.train()
    with _uneven_inputs(run):
        for index, batch in enumerate(split.loader, start=progress.batches):
            _micro_step(run, index, batch)
            if split.plan.closes_step(index):
                _step(run, index)
                if _is_last_step(run):
                    return False
    if run.config.uneven == "join" and run.world.is_distributed:
        send_optimizer_state(run.optimizer, source=0)  # rank 0 has the most steps
    return True


def _uneven_inputs(run: Run) -> AbstractContextManager[object]:
    if run.config.uneven == "pad" or not isinstance(run.model, DistributedDataParallel):
        return nullcontext()
    return Join([run.model])


def _micro_step(run: Run, index: int, batch: Batch) -> None:
    _tell_delivery(run, index, batch, training=True)
    plan = run.training.plan
    batch = _to_device(batch, run.world)
    with gradient_sync(run.model, closes_step=plan.closes_step(index)):
        with autocast(run.config, run.world):
            losses = run.stage.losses(run.model, batch)
        total = (losses * batch["weight"]).sum()
        (total * plan.loss_scale(index)).backward()  # type: ignore[no-untyped-call]
    if counts_losses(run.config, run.world):
        run.progress.loss_sum += total.item()


def _step(run: Run, index: int) -> None:
    norm = clip_gradients(run.model, run.config.clip_norm)
    if not math.isfinite(norm):
        # The norm is that of all ranks: they all raise, or none.
        raise FloatingPointError(f"gradient norm {norm} after micro-batch {index}")
    run.optimizer.step()
    run.optimizer.zero_grad()
    run.progress.batches = index + 1
    step = _step_number(run)
    run.observe(Stepped(run.progress.epoch, step, norm))
    path = run.config.checkpoint
    if path is not None and run.config.save_every and step % run.config.save_every == 0:
        _save(run, path)


def _step_number(run: Run) -> int:
    """Optimizer steps in all, by arithmetic: a joined rank has not made them itself."""
    plan = run.training.plan
    done = math.ceil(run.progress.batches / plan.accumulate)
    return run.progress.epoch * plan.steps + done


def _is_last_step(run: Run) -> bool:
    return 0 < run.config.max_steps <= _step_number(run)


def _end_epoch(run: Run, begun: float) -> EpochReport:
    progress = run.progress
    loss = _mean(run, progress.loss_sum, run.training)
    validation_loss = _mean(run, _evaluate(run), run.validation)
    epoch = progress.epoch
    progress.epoch, progress.batches, progress.loss_sum = epoch + 1, 0, 0.0
    seconds = time.monotonic() - begun
    report = EpochReport(epoch, _step_number(run), loss, validation_loss, seconds)
    run.observe(report)
    if run.config.checkpoint is not None and progress.epoch < run.config.epochs:
        _save(run, run.config.checkpoint)
    return report


@torch.no_grad()
def _evaluate(run: Run) -> float:
    """This rank's part of the sum of losses; padding goes through the model at weight 0.

    The ranks must make equally many forward calls, each of which gathers FSDP's shards.
    """
    _share_buffers(run)
    run.model.eval()
    total = 0.0
    for index, batch in enumerate(run.validation.loader):
        _tell_delivery(run, index, batch, training=False)
        batch = _to_device(batch, run.world)
        with autocast(run.config, run.world):
            losses = run.stage.losses(run.model, batch)
        total += (losses.double() * batch["weight"]).sum().item()
    return total if counts_losses(run.config, run.world) else 0.0


def _mean(run: Run, part: float, split: Split) -> float:
    """Mean over samples and not over ranks' means, which weigh a short rank too much."""
    total = torch.tensor(part, dtype=torch.float64, device=run.world.device)
    if run.world.is_distributed:
        dist.all_reduce(total)
    return total.item() / split.plan.samples


def _share_buffers(run: Run) -> None:
    if run.world.is_distributed:
        send_buffers(run.model, source=0)


def _tell_delivery(run: Run, index: int, batch: Batch, *, training: bool) -> None:
    ids, weights = batch["id"].tolist(), batch["weight"].tolist()
    epoch = run.progress.epoch
    run.observe(Delivered(epoch, index, tuple(ids), tuple(weights), training))


def _to_device(batch: Batch, world: World) -> Batch:
    return {key: value.to(world.device, non_blocking=True) for key, value in batch.items()}


def _save(run: Run, path: Path) -> None:
    _share_buffers(run)
    save_checkpoint(path, run.model, run.optimizer, run.progress, run.world, run.identity)
