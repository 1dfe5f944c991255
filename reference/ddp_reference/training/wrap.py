"""Makes of a model on its device a model that trains on all ranks: wrap, compile, precision."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.distributed.tensor import DTensor, Replicate, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from .config import CompileOrder, TrainConfig
from .distributed import ConfigError, World
from .models import Block


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
            "other; use auto, ddp, fsdp1, fsdp2, tp or fsdp2_tp"
        )
    if strategy != "ddp" and config.uneven == "join" and world.is_distributed:
        raise ConfigError(f"Join is DDP's; with {strategy} use uneven='pad'")
    if strategy == "fsdp2_tp" and world.world_size % config.tensor_parallel:
        raise ConfigError(
            f"{world.world_size} ranks are no multiple of tensor_parallel {config.tensor_parallel}"
        )
    return strategy


def data_world(config: TrainConfig, world: World) -> World:
    """The place among the ranks with samples of their own.

    Ranks that split each layer between them must see the same samples, and have one place.
    """
    split = _tensor_ranks(config, world)
    return world._replace(rank=world.rank // split, world_size=world.world_size // split)


def counts_losses(config: TrainConfig, world: World) -> bool:
    """Whether this rank adds its losses to a sum over ranks: one of those that share samples."""
    return world.rank % _tensor_ranks(config, world) == 0


def _tensor_ranks(config: TrainConfig, world: World) -> int:
    """How many ranks split each layer between them."""
    strategy = resolve_strategy(config, world)
    return {"tp": world.world_size, "fsdp2_tp": config.tensor_parallel}.get(strategy, 1)


def wrap(model: nn.Module, config: TrainConfig, world: World) -> nn.Module:
    """The model that trains on all ranks. Every rank ends with rank 0's parameters."""
    strategy = resolve_strategy(config, world)
    if strategy == "ddp":
        return setup_ddp(model, config, world)
    if strategy == "fsdp1":
        return setup_fsdp1(model, config, world.device)
    if strategy == "fsdp2":
        return setup_fsdp2(model, config, world.local_rank)
    if strategy == "tp":
        return setup_tp(model, world.local_rank)
    if strategy == "fsdp2_tp":
        return setup_fsdp2_tp(model, config, world.local_rank)
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
    _send(model, local_rank)
    return _shard(model, config, _mesh(data=dist.get_world_size()))


def setup_tp(model: nn.Module, local_rank: int) -> nn.Module:
    """Tensor parallelism over all ranks, which see the same samples."""
    _send(model, local_rank)
    return _split(model, _mesh(tensor=dist.get_world_size()))


def setup_fsdp2_tp(model: nn.Module, config: TrainConfig, local_rank: int) -> nn.Module:
    """FSDP2 over tensor parallelism, on a mesh whose second dimension has neighbouring ranks.

    Tensor parallelism communicates in every block, FSDP in every unit: the ranks of a machine
    are neighbours.
    """
    _send(model, local_rank)
    split = config.tensor_parallel
    mesh = _mesh(data=dist.get_world_size() // split, tensor=split)
    return _shard(_split(model, mesh["tensor"]), config, mesh["data"])


def _send(model: nn.Module, local_rank: int) -> None:
    """Put the model on the rank's device, with rank 0's parameters."""
    if dist.get_backend() == "nccl":
        model.to(torch.device("cuda", local_rank))
    _broadcast(model)


def _mesh(**sizes: int) -> DeviceMesh:
    """A mesh of all ranks with these dimensions."""
    kind = "cuda" if dist.get_backend() == "nccl" else "cpu"
    return init_device_mesh(kind, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def _split(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Split each block's first layer by its outputs, and the second by its inputs.

    The block's sum over ranks is the only communication of its forward pass. Between modules
    activations are plain tensors, equal on all ranks. All other parameters are replicated, as
    DTensors: the norm of plain ones and of DTensors cannot be taken in one.

    Outputs are copied, since FSDP2 hooks those of its units: a local part is a view, whose hook an
    in-place operation would lose.
    """
    plan: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        if isinstance(module, Block):
            plan |= {f"{name}.wide": ColwiseParallel(), f"{name}.narrow": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    for module in list(model.modules()):
        own = list(module.parameters(recurse=False))
        if any(not isinstance(parameter, DTensor) for parameter in own):
            distribute_module(module, mesh, input_fn=_replicated, output_fn=_local)
        if own:
            module.register_forward_hook(_copied)
    return model


def _replicated(module: nn.Module, inputs: tuple[Tensor, ...], mesh: DeviceMesh) -> Any:
    return tuple(DTensor.from_local(value, mesh, [Replicate()]) for value in inputs)


def _local(module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Any:
    return output.to_local()


def _copied(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output.clone()


def _shard(model: nn.Module, config: TrainConfig, mesh: DeviceMesh) -> nn.Module:
    """``fully_shard`` on each unit, then on the whole."""
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
    """Autocast for one forward pass, never longer: autocast keeps its bf16 copies of the weights
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
