"""Choice of strategy, shard units, and compilation in place; the wraps run in test_ranks."""

import re
from functools import partial

import pytest
import torch
import torch._dynamo
from ddp_reference.training.config import TrainConfig
from ddp_reference.training.distributed import World
from ddp_reference.training.models import ModelSize
from ddp_reference.training.stages import STAGES
from ddp_reference.training.wrap import (
    _maybe_compile,
    autocast,
    clip_gradients,
    counts_losses,
    data_world,
    resolve_strategy,
    shard_units,
)
from torch import nn
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

ALONE = World(torch.device("cpu"), False, 0, 1, 0)
SECOND = World(torch.device("cpu"), True, 1, 2, 1)


def model(width: int = 16, depth: int = 2) -> nn.Module:
    return STAGES["operator"].build_model(ModelSize(width, depth))


@pytest.mark.parametrize(
    ("strategy", "world", "message"),
    [
        ("ddp", ALONE, "strategy ddp needs a process group; launch with: torchrun"),
        ("none", SECOND, "strategy none would train 2 models"),
        ("fsdp2_tp", SECOND._replace(world_size=3), "3 ranks are no multiple of tensor_parallel 2"),
    ],
)
def test_a_strategy_that_cannot_work_is_refused(strategy: str, world: World, message: str) -> None:
    config = TrainConfig(strategy=strategy)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=re.escape(message)):
        resolve_strategy(config, world)


@pytest.mark.parametrize(
    ("strategy", "places"),
    [
        ("fsdp2", [(0, True), (1, True), (2, True), (3, True), (4, True), (5, True)]),
        ("tp", [(0, True), (0, False), (0, False), (0, False), (0, False), (0, False)]),
        ("fsdp2_tp", [(0, True), (0, False), (0, False), (1, True), (1, False), (1, False)]),
    ],
)
def test_ranks_that_split_layers_have_one_place_and_one_of_them_counts(
    strategy: str, places: list[tuple[int, bool]]
) -> None:
    config = TrainConfig(strategy=strategy, tensor_parallel=3)  # type: ignore[arg-type]
    found = []
    for rank in range(6):
        world = World(torch.device("cpu"), True, rank, 6, rank)
        data = data_world(config, world)
        assert data.world_size == 1 + max(place for place, _ in places)
        found.append((data.rank, counts_losses(config, world)))
    assert found == places


@pytest.mark.parametrize("least", [1, 300, 1100, 2000, 10**6])
def test_units_follow_the_size_rule_of_fsdp1(least: int) -> None:
    """The policy that FSDP1 would ask, asked in FSDP1's order on the same model."""
    whole = model()
    policy = partial(size_based_auto_wrap_policy, min_num_params=least)
    taken: list[nn.Module] = []

    def numel(module: nn.Module) -> int:
        inside = {p for unit in taken for p in unit.parameters()}
        return sum(p.numel() for p in module.parameters() if p not in inside)

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if policy(module=child, recurse=True, nonwrapped_numel=numel(child)):
                visit(child)
                if policy(module=child, recurse=False, nonwrapped_numel=numel(child)):
                    taken.append(child)

    visit(whole)
    assert [id(unit) for unit in shard_units(whole, least)] == [id(unit) for unit in taken]
    assert (len(taken) > 0) == (least < 10**6)


def is_compiled(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None


@pytest.mark.parametrize("order", ["before", "after"])
def test_compilation_is_in_place_and_leaves_the_names_alone(order: str) -> None:
    torch._dynamo.reset()
    config = TrainConfig(compile=order, compile_backend="eager")  # type: ignore[arg-type]
    compiled, eager = model(), model()
    eager.load_state_dict(compiled.state_dict())
    other = "after" if order == "before" else "before"
    _maybe_compile(compiled, config, other)  # type: ignore[arg-type]
    assert not is_compiled(compiled)
    _maybe_compile(compiled, config, order)  # type: ignore[arg-type]
    assert is_compiled(compiled)
    assert list(compiled.state_dict()) == list(eager.state_dict())
    field, condition = torch.randn(3, 32), torch.randn(3, 3)
    assert torch.allclose(compiled(field, condition), eager(field, condition))


def test_bf16_is_autocast_except_under_fsdp() -> None:
    linear, values = nn.Linear(4, 4), torch.randn(2, 4)
    with autocast(TrainConfig(precision="bf16"), ALONE):
        assert linear(values).dtype == torch.bfloat16
    with autocast(TrainConfig(precision="bf16", strategy="fsdp2"), SECOND):
        assert linear(values).dtype == torch.float32
    with autocast(TrainConfig(), ALONE):
        assert linear(values).dtype == torch.float32


def test_clipping_gives_the_norm_before_and_bounds_it_after() -> None:
    linear = nn.Linear(1, 1, bias=False)
    linear.weight.grad = torch.tensor([[3.0]])
    assert clip_gradients(linear, 1.0) == pytest.approx(3.0)
    assert clip_gradients(linear, 1.0) == pytest.approx(1.0)
