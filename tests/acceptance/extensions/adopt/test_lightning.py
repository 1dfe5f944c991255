"""``--ddp-adopt=spawn``: what Lightning's strategy ``ddp_spawn`` starts."""

from __future__ import annotations

from tests.acceptance.suite import Suite

SOURCE = """
import sys

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel


class Model(BoringModel):
    def __init__(self, expected):
        super().__init__()
        self.expected = expected

    def on_train_end(self):
        assert "pytest_ddp.extensions.adopt.ranks.served_process" in sys.modules
        total = torch.tensor(self.global_rank)
        dist.all_reduce(total)
        assert total == self.expected


@pytest.mark.parametrize("expected", [1, 2])
def test_fit(tmp_path, expected):
    Trainer(
        accelerator="cpu", devices=2, strategy="ddp_spawn", max_steps=1, logger=False,
        default_root_dir=tmp_path, enable_progress_bar=False, enable_model_summary=False,
    ).fit(Model(expected))
"""


def test_a_trainer_that_spawns(suite: Suite) -> None:
    suite.write("test_it.py", SOURCE)
    found = suite.run("--ddp-adopt=spawn", timeout=200)
    verdicts = {name: found[name].verdict for name in ("test_fit[1]", "test_fit[2]")}
    assert verdicts == {"test_fit[1]": "passed", "test_fit[2]": "failed"}, found.tail()
    assert "total == self.expected" in found["test_fit[2]"].text
