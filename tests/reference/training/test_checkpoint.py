"""Checkpoints: names, resumption of a run, refusal of another run's."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ddp_reference.cache.format import save_whole
from ddp_reference.training import lifecycle
from ddp_reference.training.checkpoint import (
    normalise_keys,
    optimizer_state,
    rng_state,
    set_optimizer_state,
    set_rng_state,
)
from ddp_reference.training.config import TrainConfig
from ddp_reference.training.distributed import World
from ddp_reference.training.lifecycle import run
from ddp_reference.training.loop import Begun, Delivered, EpochReport, Event, Summary
from ddp_reference.training.stages import STAGES
from torch import nn
from torch.optim import AdamW

STAGE = STAGES["diffusion"]
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "name",
    [
        "a.weight",
        "module.a.weight",
        "_orig_mod.module.a.weight",
        "module._orig_mod.a.weight",
        "_fsdp_wrapped_module.a._fsdp_wrapped_module._orig_mod.weight",
        "a._checkpoint_wrapped_module.weight",
    ],
)
def test_wrappers_leave_the_names(name: str) -> None:
    assert list(normalise_keys({name: torch.ones(1)})) == ["a.weight"]


def test_names_that_fall_together_are_refused() -> None:
    with pytest.raises(ValueError, match="one name without wrappers"):
        normalise_keys({"a.weight": torch.ones(1), "module.a.weight": torch.ones(1)})


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    return TrainConfig(
        stage="diffusion", samples=70, batch_size=8, epochs=3, width=16, data=tmp_path / "data.pt"
    )


def train(config: TrainConfig) -> tuple[Summary, list[tuple[int, ...]]]:
    """The run's summary and the ids of its training batches, in order."""
    seen: list[tuple[int, ...]] = []

    def observe(event: Event) -> None:
        if isinstance(event, Delivered) and event.training:
            seen.append(event.ids)

    return run(STAGE, config, observe), seen


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # few cores
@pytest.mark.parametrize("stop", [3, 8, 12, 16])
def test_a_run_that_was_interrupted_ends_as_if_it_had_not(config: TrainConfig, stop: int) -> None:
    """8 steps an epoch: in the first, at its end, in mid-epoch, at the second's end."""
    whole, order = train(config)
    path = config.data_path.with_name("run.ckpt")
    first, begun = train(replace(config, max_steps=stop, checkpoint=path, workers=1))
    assert not first.finished
    rest, ended = train(replace(config, resume=path))
    assert begun + ended == order
    assert rest.digest == whole.digest
    losses = [report.loss for report in (*first.epochs, *rest.epochs)]
    assert losses == pytest.approx([report.loss for report in whole.epochs], rel=1e-12)


def test_a_checkpoint_loads_into_the_bare_model_from_any_run(config: TrainConfig) -> None:
    path = config.data_path.with_name("run.ckpt")
    summary, _ = train(replace(config, checkpoint=path, compile="before", compile_backend="eager"))
    bare = lifecycle.build_model(STAGE, config)
    bare.load_state_dict(torch.load(path, weights_only=True)["model"])
    assert {name: tuple(t.shape) for name, t in bare.state_dict().items()}.keys() == (
        summary.digest.keys()
    )
    assert list(path.parent.glob(".*")) == []


def test_another_runs_checkpoint_is_refused_by_what_differs(config: TrainConfig) -> None:
    path = config.data_path.with_name("run.ckpt")
    train(replace(config, epochs=1, checkpoint=path))
    with pytest.raises(ValueError, match=r"run\.ckpt was trained with batch_size 8, not 16"):
        train(replace(config, resume=path, batch_size=16))


def test_save_every_writes_in_mid_epoch(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddp_reference.training import checkpoint

    saved: list[tuple[int, int]] = []

    def note(content: dict[str, int], path: Path) -> None:
        saved.append((content["epoch"], content["batches"]))
        save_whole(content, path)

    monkeypatch.setattr(checkpoint, "save_whole", note)
    path = config.data_path.with_name("run.ckpt")
    train(replace(config, epochs=2, checkpoint=path, save_every=5))
    assert saved == [(0, 5), (1, 0), (1, 2), (1, 7), (2, 0)]


def test_saving_leaves_the_run_as_it_is_and_can_be_resumed_from(config: TrainConfig) -> None:
    """Before the first step too, when the optimizer has no state yet."""
    whole, order = train(config)
    paths = {step: config.data_path.with_name(f"{step}.ckpt") for step in (0, 1, 8)}
    begun: list[Begun] = []

    def save(event: Event) -> None:
        if isinstance(event, Begun):
            begun.append(event)
        step = 0 if isinstance(event, Begun) else getattr(event, "step", None)
        if step in paths and not isinstance(event, EpochReport):
            begun[0].save(paths[step])

    assert run(STAGE, config, save).digest == whole.digest
    for step, path in paths.items():
        rest, ended = train(replace(config, resume=path))
        assert rest.digest == whole.digest
        assert ended == order[step:]


def test_groups_come_back_before_the_first_step(config: TrainConfig) -> None:
    model = lifecycle.build_model(STAGE, config)
    state = optimizer_state(model, AdamW(model.parameters(), lr=0.125, weight_decay=0.5))
    optimizer = AdamW(model.parameters())
    set_optimizer_state(model, optimizer, state)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.125, 0.5)
    assert group["params"] == list(model.parameters())
    assert not optimizer.state


def test_random_state_comes_back() -> None:
    lifecycle.seed_rank(0, 1)
    state = rng_state(CPU)
    drawn = (random.random(), torch.rand(3).tolist())
    set_rng_state(state, CPU)
    assert (random.random(), torch.rand(3).tolist()) == drawn


def test_ranks_draw_differently_and_build_alike() -> None:
    def draws(rank: int) -> tuple[float, float]:
        lifecycle.seed_rank(7, rank)
        return random.random(), torch.rand(1).item()

    assert len({draws(rank) for rank in range(4)}) == 4
    lifecycle.seed_rank(7, 3)
    first = lifecycle.build_model(STAGE, TrainConfig())
    second = lifecycle.build_model(STAGE, TrainConfig())
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_the_optimizer_is_made_for_the_wrapped_models_parameters(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrap that replaces the parameters, as FSDP does: training goes on, on the new ones."""
    wrapped: list[nn.Module] = []

    def replace_parameters(model: nn.Module, config: TrainConfig, world: World) -> nn.Module:
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(parameter.detach().clone()))
        wrapped.append(model)
        return model

    before, _ = train(config)
    monkeypatch.setattr(lifecycle, "wrap", replace_parameters)
    after, _ = train(config)
    assert len(wrapped) == 1
    assert after.digest == before.digest
