"""The backend and device that launched ranks get from the test's."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp_conformance.caches.killing import open_until_killed
from ddp_conformance.callbacks.dying import loop_and_die
from ddp_conformance.framework.ranks import gpu_of
from ddp_conformance.launched.journal import Journal
from ddp_conformance.launched.order import Named, Order, Work
from ddp_conformance.launched.rank_devices import RankDevice, devices_of, join
from ddp_conformance.launched.start.launch import Limits, launch

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
    dist.destroy_process_group()


def loop(order: Order, journal: Journal) -> None:
    delay_rank_zero(order)
    loop_and_die(order, journal)


def open_cache(order: Order, journal: Journal) -> None:
    delay_rank_zero(order)
    open_until_killed(order, journal)


def delay_rank_zero(order: Order) -> None:
    """Let its group be made half a second later than that of its peer."""
    make = dist.init_process_group

    def make_late(*arguments: Any, **options: Any) -> None:
        make(*arguments, **options)
        threading.Event().wait(0.5)
        Path("late").touch()

    if order.rank == 0:
        dist.init_process_group = make_late


def look(*_: object) -> None:
    """The user's code, which could die at once."""
    Path(f"seen-by-{dist.get_rank()}").write_text(str(Path("late").exists()))
    raise RuntimeError


@pytest.mark.parametrize(("does", "argv"), [(loop, ("5", ".")), (open_cache, ("5", ".", "1"))])
@pytest.mark.ddp(world_size=1, init=False)
def test_user_code_starts_when_all_have_joined(
    does: Any, argv: tuple[str, ...], tmp_path: Path
) -> None:
    launch(Work(Named.of(does), Named.of(look), argv), 2, tmp_path, Limits(100.0, 20.0))
    seen = [(tmp_path / "run" / f"seen-by-{rank}").read_text() for rank in (0, 1)]
    assert seen == ["True", "True"]
