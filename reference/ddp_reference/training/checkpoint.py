"""Checkpoints that any strategy and world size can read: whole, with the bare model's names."""

import pickle
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from ddp_reference.cache.format import save_whole

from .distributed import ConfigError, World

Value = TypeVar("Value")

# What a wrapper puts into the names of the parameters below it.
WRAPPERS = frozenset({"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


@dataclass(slots=True)
class Progress:
    """How far a run is; a checkpoint holds it.

    epoch: the epoch that comes next, or that is under way.
    batches: micro-batches of each rank that are done in it.
    loss_sum: this rank's part of the sum of the epoch's sample losses so far.
    """

    epoch: int = 0
    batches: int = 0
    loss_sum: float = 0.0


def normalise_keys(state: Mapping[str, Any]) -> dict[str, Any]:
    """The bare model's names, whatever wrappers the state was taken through.

    Only leading and inner parts that are wrappers' own are dropped. Raises ValueError
    when two entries get one name.
    """
    renamed = {
        ".".join(part for part in name.split(".") if part not in WRAPPERS): value
        for name, value in state.items()
    }
    if len(renamed) != len(state):
        raise ValueError(f"different entries have one name without wrappers: {sorted(state)}")
    return renamed


def full_model_state(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, whole; every rank must call. Aliases the model if unsharded."""
    return normalise_keys(get_model_state_dict(model, options=_whole(model)))


def optimizer_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Moments, step counters and groups, whole; every rank must call.

    Before the first step there are no moments. torch makes a step with gradients of zero then, so
    as to have some, and would leave Adam's counter at 1 (pytorch#164929).
    """
    is_fresh = not any(optimizer.state.values())
    state = get_optimizer_state_dict(model, optimizer, options=_whole(model))
    if is_fresh:
        optimizer.state.clear()
        state["state"] = {}
    return state


def set_optimizer_state(model: nn.Module, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Bring a fresh optimizer to where :func:`optimizer_state` has seen another; on every rank."""
    if state["state"]:
        options = StateDictOptions(full_state_dict=True)
        set_optimizer_state_dict(model, optimizer, dict(state), options=options)
        return
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        group.update({name: value for name, value in saved.items() if name != "params"})


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: Optimizer,
    progress: Progress,
    world: World,
    identity: Mapping[str, Any],
) -> None:
    """Write a checkpoint, by rank 0 and whole at any moment; every rank must call.

    ``identity``: choices that a run must share to go on from it.
    """
    content = {
        "identity": dict(identity),
        "model": full_model_state(model),
        "optimizer": optimizer_state(model, optimizer),
        "epoch": progress.epoch,
        "batches": progress.batches,
        "loss_sum": sum(gather(progress.loss_sum, world)),
        "rng": gather(rng_state(world.device), world),
    }
    if world.rank == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_whole(content, path)


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: Optimizer, world: World, identity: Mapping[str, Any]
) -> Progress:
    """Bring model, optimizer and random state to where ``path`` left them; every rank reads it.

    Any strategy and any number of ranks may go on from any other. Random states are those
    of each rank if there are as many as then; the parts here draw none, noise and order
    being functions of seed and epoch. Raises ConfigError, on all ranks, when the run's
    ``identity`` is another one or a rank finds no checkpoint of a run.
    """
    content, obstacle = _read(path, identity)
    for rank, text in enumerate(gather(obstacle, world)):
        if text:
            raise ConfigError(text if text == obstacle else f"rank {rank}: {text}")
    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, normalise_keys(content["model"]), options=options)
    set_optimizer_state(model, optimizer, content["optimizer"])
    if len(content["rng"]) == world.world_size:
        set_rng_state(content["rng"][world.rank], world.device)
    # The sum is kept whole: rank 0 goes on with it and the others from nothing.
    loss_sum = content["loss_sum"] if world.rank == 0 else 0.0
    return Progress(content["epoch"], content["batches"], loss_sum)


def _read(path: Path, identity: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """What the file has; with nothing, why it cannot be used."""
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        trained = content["identity"]
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, LookupError) as error:
        return {}, f"{path} is no checkpoint of a run: {type(error).__name__}"
    for name, value in identity.items():
        if trained.get(name) != value:
            had = trained.get(name)
            return {}, f"{path} was trained with {name} {had!r}, not {value!r}"
    return content, ""


def rng_state(device: torch.device) -> dict[str, Any]:
    """The state of the generators of Python, torch and, where it is in use, NumPy.

    In types that torch.load(weights_only) reads.
    """
    version, words, gauss = random.getstate()
    return {
        "python": (version, list(words), gauss),
        "numpy": _numpy_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def set_rng_state(state: Mapping[str, Any], device: torch.device) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    numpy = sys.modules.get("numpy")
    if numpy is not None and state["numpy"] is not None:
        numpy.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)


def _numpy_state() -> tuple[Any, ...] | None:
    """torch needs no NumPy, but imports it where there is one."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    name, words, *rest = numpy.random.get_state()
    return (name, words.tolist(), *rest)


def gather(value: Value, world: World) -> list[Value]:
    """One value of each rank, in rank order."""
    if not world.is_distributed:
        return [value]
    values: list[Value | None] = [None] * world.world_size
    dist.all_gather_object(values, value)
    return values  # type: ignore[return-value]


def _whole(model: nn.Module) -> StateDictOptions:
    """Whole tensors on every rank, brought to the CPU only from elsewhere.

    ``cpu_offload`` of an FSDP1 model that is on the CPU already reads freed memory
    (SIGSEGV in torch 2.13, ``_state_dict_utils.param_hook``).
    """
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    return StateDictOptions(full_state_dict=True, cpu_offload=not on_cpu)
