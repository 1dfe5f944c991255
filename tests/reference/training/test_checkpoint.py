"""Checkpoints: names, moments of saving, refusal of another run's."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ddp_reference.cache.format import save_whole
from ddp_reference.training import checkpoint, lifecycle
from ddp_reference.training.checkpoint import (
    normalise_keys,
    optimizer_state,
    set_optimizer_state,
)
from ddp_reference.training.config import TrainConfig
from ddp_reference.training.lifecycle import run
from ddp_reference.training.stages import STAGES
from torch.optim import AdamW

STAGE = STAGES["diffusion"]


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


def test_another_runs_checkpoint_is_refused_by_what_differs(config: TrainConfig) -> None:
    path = config.data_path.with_name("run.ckpt")
    run(STAGE, replace(config, epochs=1, checkpoint=path))
    with pytest.raises(ValueError, match=r"run\.ckpt was trained with batch_size 8, not 16"):
        run(STAGE, replace(config, resume=path, batch_size=16))


def test_save_every_writes_in_mid_epoch(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[tuple[int, int]] = []

    def note(content: dict[str, int], path: Path) -> None:
        saved.append((content["epoch"], content["batches"]))
        save_whole(content, path)

    monkeypatch.setattr(checkpoint, "save_whole", note)
    path = config.data_path.with_name("run.ckpt")
    run(STAGE, replace(config, epochs=2, checkpoint=path, save_every=5))
    assert saved == [(0, 5), (1, 0), (1, 2), (1, 7), (2, 0)]


def test_groups_come_back_before_the_first_step(config: TrainConfig) -> None:
    model = lifecycle.build_model(STAGE, config)
    state = optimizer_state(model, AdamW(model.parameters(), lr=0.125, weight_decay=0.5))
    optimizer = AdamW(model.parameters())
    set_optimizer_state(model, optimizer, state)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.125, 0.5)
    assert group["params"] == list(model.parameters())
    assert not optimizer.state
