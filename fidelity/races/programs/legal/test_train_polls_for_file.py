"""Among a training: ranks poll for the file that rank 0 exports, with a limit."""

from __future__ import annotations

import json
import time

import pytest
import torch.distributed as dist
from training import Training


def export_tokenizer(folder):
    path = folder / "tokenizer.json"
    if dist.get_rank() == 0:
        path.with_suffix(".tmp").write_text(json.dumps({"vocabulary": 16}))
        path.with_suffix(".tmp").rename(path)
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not exported"
        time.sleep(0.02)
    return json.loads(path.read_text())["vocabulary"]


@pytest.mark.ddp(world_size=3)
def test_export(ddp, tmp_path):
    training = Training(tmp_path)
    for epoch in range(4):
        training.run(6)
        (tmp_path / f"samples-{epoch}-{ddp.rank}.txt").write_text("once upon a time\n")
    assert export_tokenizer(tmp_path) == 16
    training.run(2)
    losses = (tmp_path / f"loss-{ddp.rank}.csv").read_text().splitlines()
    assert len(losses) == 26
