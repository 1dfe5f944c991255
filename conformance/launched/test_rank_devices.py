"""Which backend and device launched ranks get from the test's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp_conformance.framework.ranks import gpu_of
from ddp_conformance.launched.rank_devices import RankDevice, devices_of, join

from pytest_ddp import Ddp

GPU = torch.device("cuda", 3)


@dataclass
class Ranks:
    """One of two ranks; the other one has gathered ``peer``."""

    peer: RankDevice
    rank: int = 0
    world_size: int = 2

    def gather(self, obj: Any) -> list[Any]:
        return [obj, self.peer]


@dataclass
class RanksOnDevices(Ranks):
    backend: str = "nccl"
    device: torch.device = GPU


def test_each_rank_has_the_gpu_that_its_test_has_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_HOSTID", "run-0")
    own, peer = RankDevice("nccl", "cuda:3", "run-0"), RankDevice("nccl", "cuda:5", "run-1")
    assert devices_of(RanksOnDevices(peer)) == (own, peer)
    assert gpu_of(RanksOnDevices(peer)) == GPU


@pytest.mark.parametrize("ranks", [Ranks, RanksOnDevices])
def test_all_or_none_have_one(ranks: type[Ranks]) -> None:
    assert devices_of(ranks(RankDevice())) == ()


def test_ranks_of_a_simulation_have_none() -> None:
    assert gpu_of(Ranks(RankDevice())) is None


@pytest.mark.ddp(world_size=2, device="meta")
def test_nor_have_those_of_a_test_without_gpus(ddp: Ddp) -> None:
    assert devices_of(ddp) == ()


@pytest.mark.ddp(world_size=2, init=False)
def test_a_group_without_gpus_is_of_gloo(ddp: Ddp) -> None:
    join(RankDevice())
    assert dist.get_backend() == "gloo"
    # gloo connects in the background: no rank may leave before its peer has connected.
    dist.barrier()
    dist.destroy_process_group()
