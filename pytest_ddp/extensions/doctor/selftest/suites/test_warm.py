"""Warm ranks live on from test to test; isolated ones do not."""

import os

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.ddp
SEEN = []

EXPECTED = {
    "test_first": ("passed", ""),
    "test_lives_on": ("passed", ""),
    "test_is_alone": ("passed", ""),
    "test_lives_on_after_it": ("passed", ""),
}


def visit(ddp):
    SEEN.append(os.getpid())
    total = torch.ones(1, device=ddp.device)
    dist.all_reduce(total)
    assert total.item() == ddp.world_size
    return SEEN


def test_first(ddp):
    assert len(visit(ddp)) == 1


def test_lives_on(ddp):
    first, second = visit(ddp)
    assert first == second


@pytest.mark.ddp(isolate=True)
def test_is_alone(ddp):
    assert len(visit(ddp)) == 1


def test_lives_on_after_it(ddp):
    visit(ddp)
    assert len(set(ddp.gather(os.getpid()))) == ddp.world_size
