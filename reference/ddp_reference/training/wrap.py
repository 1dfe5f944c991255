"""From a model on its device to a model that trains on all ranks: wrap, compile, precision."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from .config import CompileOrder, TrainConfig
from .distributed import ConfigError, World


def resolve_strategy(config: TrainConfig, world: World) -> str:
    """The strategy that ``auto`` means here; raises ConfigError where one cannot work."""
    auto = "ddp" if world.is_distributed else "none"
    strategy = auto if config.strategy == "auto" else config.strategy
    if strategy != "none" and not world.is_distributed:
        raise ConfigError(
            f"strategy {strategy} needs a process group; launch with: "
            "torchrun --nproc-per-node=N -m ddp_reference.train"
        )
    if strategy == "none" and world.world_size > 1:
        raise ConfigError(
            f"strategy none would train {world.world_size} models that know nothing of each "
            "other; use auto, ddp, fsdp1 or fsdp2"
        )
    if strategy != "ddp" and config.uneven == "join" and world.is_distributed:
        raise ConfigError(f"Join is DDP's; with {strategy} use uneven='pad'")
    return strategy


def wrap(model: nn.Module, config: TrainConfig, world: World) -> nn.Module:
    """The model that trains on all ranks. Every rank ends with rank 0's parameters."""
    strategy = resolve_strategy(config, world)
    if strategy == "ddp":
        return setup_ddp(model, config, world)
    if strategy == "fsdp1":
        return setup_fsdp1(model, config, world.device)
    if strategy == "fsdp2":
        return setup_fsdp2(model, config, world.local_rank)
    return model


def setup_ddp(model: nn.Module, config: TrainConfig, world: World) -> nn.Module:
    """DDP with a static graph.

    Not with accumulation: the static graph is learned in the first backward pass, and
    ``no_sync`` around that one is an internal assertion of the reducer (seen with 2.13).
    """
    return DistributedDataParallel(
        model,
        device_ids=[world.local_rank] if world.device.type == "cuda" else None,
        static_graph=config.accumulate == 1,
        find_unused_parameters=False,
    )


def setup_fsdp1(model: nn.Module, config: TrainConfig, device: torch.device) -> nn.Module:
    """FSDP1: units from ``min_num_params`` parameters on.

    The policy must be a partial: passed bare it is called with its own default of 1e8 and
    wraps nothing. ``device_id`` must be given, also for the CPU: without it FSDP1 looks
    for an accelerator and refuses. ``use_orig_params`` is needed by torch.compile.
    Rank 0's parameters are sent here, since ``sync_module_states`` refuses a CPU model.
    """
    _broadcast(model)
    policy = partial(size_based_auto_wrap_policy, min_num_params=config.min_num_params)
    bf16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=policy,
        device_id=device,
        use_orig_params=True,
        mixed_precision=bf16 if config.precision == "bf16" else None,
    )


def setup_fsdp2(model: nn.Module, config: TrainConfig, local_rank: int) -> nn.Module:
    """FSDP2: ``fully_shard`` on every module from ``min_num_params`` parameters on, then all.

    ``fully_shard`` cuts each rank's own parameters and sends nothing: rank 0's are sent
    first, or ranks that were seeded differently would train a patchwork.
    """
    cuda = dist.get_backend() == "nccl"
    mesh = init_device_mesh("cuda" if cuda else "cpu", (dist.get_world_size(),))
    if cuda:
        model.to(torch.device("cuda", local_rank))
    _broadcast(model)
    low = torch.bfloat16 if config.precision == "bf16" else None
    inner = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32 if low else None)
    outer = MixedPrecisionPolicy(inner.param_dtype, inner.reduce_dtype, torch.float32)
    for module in shard_units(model, config.min_num_params):
        fully_shard(module, mesh=mesh, mp_policy=inner)
    # Only the root's output is cast back: a block's would meet bf16 weights in the next.
    fully_shard(model, mesh=mesh, mp_policy=outer)
    return model


def shard_units(model: nn.Module, min_num_params: int) -> list[nn.Module]:
    """Modules below the root that become a unit each, children before parents.

    A module counts the parameters that no unit below it has taken, as FSDP1's size-based
    policy does. Containers have no forward to gather parameters in and are passed over.
    """
    units: list[nn.Module] = []
    _collect_units(model, min_num_params, units)
    return [unit for unit in units if unit is not model]


def _collect_units(module: nn.Module, least: int, units: list[nn.Module]) -> int:
    own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
    left = own + sum(_collect_units(child, least, units) for child in module.children())
    if left < least or isinstance(module, nn.ModuleList | nn.ModuleDict):
        return left
    units.append(module)
    return 0


def _broadcast(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    send_buffers(model, source=0)


def send_buffers(model: nn.Module, source: int) -> None:
    """Give every rank ``source``'s buffers; before the model is evaluated or saved.

    In training each rank writes its own, such as batch statistics. DDP sends rank 0's before
    each forward pass and so not before a checkpoint; FSDP never does.
    """
    for buffer in model.buffers():
        dist.broadcast(buffer, src=source)


def _maybe_compile(model: nn.Module, config: TrainConfig, when: CompileOrder) -> None:
    """Compile in place, if this is the order that was asked for.

    ``nn.Module.compile`` and not ``torch.compile(model)``: that one returns a wrapper
    whose ``_orig_mod.`` gets into the names of a checkpoint.
    """
    if config.compile == when:
        model.compile(backend=config.compile_backend)


def autocast(config: TrainConfig, world: World) -> AbstractContextManager[None]:
    """For one forward pass, never longer: autocast keeps its bf16 copies of the weights
    until its end, and would go on using them after an optimizer step.

    FSDP casts for itself, by its mixed precision.
    """
    if config.precision == "fp32" or resolve_strategy(config, world).startswith("fsdp"):
        return nullcontext()
    return torch.autocast(world.device.type, dtype=torch.bfloat16)


def gradient_sync(model: nn.Module, *, closes_step: bool) -> AbstractContextManager[None]:
    """Around forward and backward: reduce gradients only in the last micro-batch of a step."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(closes_step)
        return nullcontext()
    if closes_step or not isinstance(model, DistributedDataParallel | FullyShardedDataParallel):
        return nullcontext()
    context: AbstractContextManager[None] = model.no_sync()
    return context


def clip_gradients(model: nn.Module, limit: float) -> float:
    """Scale the gradients to at most ``limit``; returns the norm over all ranks' shards."""
    if isinstance(model, FullyShardedDataParallel):
        norm = model.clip_grad_norm_(limit)
    else:
        norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    return norm.item()


def send_optimizer_state(optimizer: Optimizer, source: int) -> None:
    """Give every rank ``source``'s optimizer state, in an order that all ranks share.

    Join brings the model of the rank with most steps to the others, but not the moments
    of its optimizer: without this the ranks part ways in the next epoch.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for _, value in sorted(optimizer.state[parameter].items()):
                if isinstance(value, Tensor):
                    dist.broadcast(value, src=source)
