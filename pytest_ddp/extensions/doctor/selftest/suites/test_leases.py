"""Tests on several xdist workers at once: no two of them are on one GPU at a time."""

import os
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

EXPECTED = {
    "test_has_its_own[0]": ("passed", ""),
    "test_has_its_own[1]": ("passed", ""),
    "test_has_its_own[2]": ("passed", ""),
    "test_has_its_own[3]": ("passed", ""),
}


@pytest.mark.ddp
@pytest.mark.parametrize("number", range(4))
def test_has_its_own(ddp, number):
    held = None
    if ddp.device.type == "cuda":
        gpu = torch.cuda.get_device_properties(ddp.device).uuid
        held = Path(os.environ["DDP_BATTERY_PRESENCE"]).with_name(f"held-{gpu}")
        held.touch(exist_ok=False)  # fails while another test is on it
    try:
        threading.Event().wait(0.3)
        total = torch.ones(1, device=ddp.device)
        dist.all_reduce(total)
        assert total.item() == ddp.world_size
    finally:
        if held is not None:
            held.unlink()
