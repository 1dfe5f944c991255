"""The one order in which a distributed run is made, shared by all four stages."""

import random
import sys
from datetime import timedelta
from functools import partial

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from ddp_reference.cache import SHARED_MEMORY, CacheError, LatentCache, Recipe, open_on_all_ranks

from .burgers import latent_pairs
from .checkpoint import Progress, load_checkpoint
from .config import TrainConfig, local_batch_size
from .data import BatchPlan, EpochSampler, LatentPairs, build_latent_pair_loader, mix
from .distributed import ConfigError, World, distributed_session
from .loop import EpochReport, Event, Observer, Run, Split, Summary, fit
from .models import CONDITION, LATENT, POINTS, ModelSize
from .stages import Stage
from .wrap import _maybe_compile, data_world, resolve_strategy, wrap

# A run goes on from a checkpoint only if it would have come to the same samples in the
# same order and steps; strategy, precision and number of ranks are free.
IDENTITY = ("stage", "seed", "batch_size", "accumulate", "width", "depth")

WIDTHS = {
    "field": POINTS,
    "latent": LATENT,
    "next_latent": LATENT,
    "steady": LATENT,
    "condition": CONDITION,
}


def _ignore(event: Event) -> None:
    """The observer of a run that nobody watches."""


def run(stage: Stage, config: TrainConfig, observe: Observer = _ignore) -> Summary:
    """Train ``stage`` as ``config`` says, alone or as one rank of many.

    The order is the point. The process group comes first: the rank decides what the
    loader delivers. The model is moved before it is wrapped, as the wrapper registers
    the parameters that it finds. The optimizer comes after the wrap: FSDP replaces the
    parameters, and an optimizer that was made before goes on stepping the old ones,
    without an error and without training. What is compiled after the wrap comes after
    the optimizer too, since it leaves the parameters alone.
    """
    timeout = timedelta(seconds=config.timeout)
    with distributed_session(config.backend, timeout) as world:  # set-up; teardown at the end
        return _train_in(world, stage, config, observe)


def check(config: TrainConfig, world: World) -> None:
    """Raise ConfigError where the options do not go with so many ranks, before they meet."""
    resolve_strategy(config, world)
    local_batch_size(config, data_world(config, world).world_size)


def _train_in(world: World, stage: Stage, config: TrainConfig, observe: Observer) -> Summary:
    """Everything between set-up and teardown; what it made is free when teardown begins."""
    check(config, world)
    with open_data(config) as cache:
        training, validation = build_splits(cache, config, world)  # data
        model = build_model(stage, config)  # model, on the CPU
        model.to(world.device)  # device
        _maybe_compile(model, config, "before")
        model = wrap(model, config, world)  # wrap
        optimizer = build_optimizer(model, config)  # optimizer
        _maybe_compile(model, config, "after")  # compile
        seed_rank(config.seed, world.rank)
        identity = run_identity(config, cache)
        progress = Progress()
        if config.resume is not None:
            progress = load_checkpoint(config.resume, model, optimizer, world, identity)
        whole = Run(
            stage=stage,
            config=config,
            world=world,
            model=model,
            optimizer=optimizer,
            training=training,
            validation=validation,
            progress=progress,
            identity=identity,
            observe=_reporting(config, world, observe),
        )
        return fit(whole)  # train


def run_identity(config: TrainConfig, cache: LatentCache) -> dict[str, object]:
    """What a run must share with a checkpoint to go on from it."""
    return {"data": cache.digest, **{name: getattr(config, name) for name in IDENTITY}}


def open_data(config: TrainConfig) -> LatentCache:
    """The data of the run, built if missing; raises ConfigError where they cannot be used."""
    produce = partial(latent_pairs, config.samples, config.seed)
    recipe = Recipe(produce, f"burgers {config.samples} {config.seed}")
    segment_dir = SHARED_MEMORY if config.memory == "shared" else None
    try:
        cache = open_on_all_ranks(config.data_path, recipe=recipe, segment_dir=segment_dir)
    except CacheError as error:  # on all ranks
        raise ConfigError(str(error)) from error
    for key, width in WIDTHS.items():
        shape = tuple(cache.tensor(key).shape) if key in cache.keys else None
        if shape != (len(cache), width):
            raise ConfigError(f"{cache.file}: {key!r} is {shape}, not {(len(cache), width)}")
    return cache


def build_splits(cache: LatentCache, config: TrainConfig, world: World) -> tuple[Split, Split]:
    """Training data, and the last eighth for validation."""
    world = data_world(config, world)
    held_out = max(1, len(cache) // 8)
    parts = range(len(cache) - held_out), range(len(cache) - held_out, len(cache))
    if len(parts[0]) < world.world_size:
        raise ConfigError(
            f"{cache.file}: {len(parts[0])} training samples for {world.world_size} ranks"
        )
    build = partial(_build_split, cache, config, world)
    return build(parts[0], training=True), build(parts[1], training=False)


def _build_split(
    cache: LatentCache, config: TrainConfig, world: World, samples: range, *, training: bool
) -> Split:
    plan = BatchPlan(
        samples=len(samples),
        local_batch=local_batch_size(config, world.world_size),
        accumulate=config.accumulate,
        world_size=world.world_size,
        rank=world.rank,
        # Validation is not under Join: its forward calls must match in number.
        pads=config.uneven == "pad" or not training,
    )
    sampler = EpochSampler(plan, shuffle=training, seed=config.seed)
    cuda = world.device.type == "cuda"
    dataset = LatentPairs(cache, samples, config.seed)
    loader = build_latent_pair_loader(dataset, sampler, plan, workers=config.workers, cuda=cuda)
    return Split(plan, sampler, loader)


def build_model(stage: Stage, config: TrainConfig) -> nn.Module:
    """A fresh model, the same on every rank."""
    torch.manual_seed(config.seed)
    return stage.build_model(ModelSize(config.width, config.depth))


def build_optimizer(model: nn.Module, config: TrainConfig) -> Optimizer:
    """Build the optimizer for the parameters of the *wrapped* model."""
    return AdamW(model.parameters(), lr=config.learning_rate)


def seed_rank(seed: int, rank: int) -> None:
    """Seed this rank: from the wrap on, anything that draws at random draws differently on each
    rank.
    """
    random.seed(mix(seed, rank, 1))
    torch.manual_seed(mix(seed, rank, 2))
    numpy = sys.modules.get("numpy")  # torch imports it where there is one
    if numpy is not None:
        numpy.random.seed(mix(seed, rank, 3) % (1 << 32))


def _reporting(config: TrainConfig, world: World, observe: Observer) -> Observer:
    def observer(event: Event) -> None:
        if isinstance(event, EpochReport) and world.rank == 0:
            print(
                f"epoch {event.epoch + 1}/{config.epochs} step {event.step} "
                f"loss {event.loss:.6f} validation {event.validation_loss:.6f} "
                f"{event.seconds:.2f} s",
                flush=True,
            )
        observe(event)

    return observer
