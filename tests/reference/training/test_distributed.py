"""Set-up and teardown: agreement on a backend, honest endings, nothing left."""

import gc
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ddp_reference.training.distributed import (
    Vote,
    agree_on_backend,
    count_votes,
    distributed_session,
    nccl_obstacle,
    setup_distributed,
    teardown_distributed,
)
from torch._C._distributed_c10d import HashStore, TCPStore

from tests.reference.test_leaving import gloo_threads, lasting_gloo_threads

CAN, CANNOT = "", "no CUDA device is available"


@pytest.fixture(autouse=True)
def no_group_is_left() -> Iterator[None]:
    yield
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("votes", "backend"),
    [
        ([("auto", CAN), ("auto", CAN)], "nccl"),
        ([("auto", CAN), ("auto", CANNOT)], "gloo"),
        ([("gloo", CAN), ("gloo", CAN)], "gloo"),
    ],
)
def test_nccl_is_for_all_ranks_or_for_none(votes: list[tuple[str, str]], backend: str) -> None:
    assert count_votes([Vote(*vote) for vote in votes]) == backend  # type: ignore[arg-type]


def test_different_requests_are_refused_with_each_of_them() -> None:
    with pytest.raises(ValueError, match="rank 0: gloo, rank 1: nccl"):
        count_votes([Vote("gloo", CAN), Vote("nccl", CAN)])


def in_threads(ranks: int, act: Callable[[int], str]) -> list[str]:
    """What ``act`` gives on each rank, all ranks at once, errors as their text."""
    results = [""] * ranks

    def call(rank: int) -> None:
        try:
            results[rank] = act(rank)
        except (ValueError, RuntimeError) as error:
            results[rank] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=call, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_ranks_that_cannot_agree_all_raise_the_same() -> None:
    store = HashStore()
    votes = [Vote("nccl", CAN), Vote("nccl", CANNOT)]
    said = in_threads(2, lambda rank: agree_on_backend(store, rank, 2, votes[rank]))
    assert said[0] == said[1]
    assert said[0].startswith("ConfigError: backend nccl is not possible (rank 1: no CUDA")


def test_a_rank_that_never_comes_is_named() -> None:
    store = HashStore()
    store.set_timeout(timedelta(milliseconds=300))
    said = in_threads(2, lambda rank: agree_on_backend(store, 2 * rank, 4, Vote("auto", CAN)))
    assert said == ["RuntimeError: ranks [1, 3] of 4 never arrived"] * 2


def test_a_rank_without_a_gpu_of_its_own_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert nccl_obstacle(0) == "no CUDA device is available"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert nccl_obstacle(1) == ""
    assert nccl_obstacle(2) == "local rank 2 has no GPU of its own among 2"
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert nccl_obstacle(0) == "this PyTorch has no NCCL"


@pytest.mark.usefixtures("alone")
def test_a_single_process_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device, is_distributed, rank, world_size, local_rank = setup_distributed()
    assert (device, is_distributed) == (torch.device("cpu"), False)
    assert (rank, world_size, local_rank) == (0, 1, 0)
    assert not dist.is_initialized()
    teardown_distributed()


@pytest.mark.usefixtures("launched")
def test_set_up_and_teardown_can_be_repeated_on_one_store() -> None:
    for _ in range(3):
        world = setup_distributed("gloo")
        assert (world.is_distributed, world.world_size) == (True, 1)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        teardown_distributed()
        assert not dist.is_initialized()


@pytest.fixture
def no_chance_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("launched", "no_chance_collection")
def test_teardown_frees_the_threads_of_a_group_that_a_dead_model_holds() -> None:
    from torch.nn.parallel import DistributedDataParallel

    before = len(gloo_threads())
    setup_distributed("gloo")
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    model.compile(backend="eager")  # the compiled call is bound to the model: a cycle
    del model
    assert len(gloo_threads()) > before
    teardown_distributed()
    assert len(lasting_gloo_threads(before)) == before


def test_a_group_that_is_there_is_used_and_left(launched: TCPStore) -> None:
    dist.init_process_group("gloo")
    world = setup_distributed()
    assert world == (torch.device("cpu"), True, 0, 1, 0)
    teardown_distributed()
    assert dist.is_initialized()
    dist.destroy_process_group()


@pytest.mark.usefixtures("launched")
def test_an_error_leaves_the_block_as_it_was_and_the_group_destroyed() -> None:
    with pytest.raises(ArithmeticError, match="mine"), distributed_session("gloo"):
        raise ArithmeticError("mine")


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.usefixtures("launched")
def test_leaving_early_is_no_success(code: int) -> None:
    expected = SystemExit if code else RuntimeError
    with pytest.raises(expected), distributed_session("gloo"):
        raise SystemExit(code)


def test_teardown_ends_the_threads_that_compiled() -> None:
    from torch._inductor import async_compile, config

    before = set(threading.enumerate())
    with config.patch(compile_threads=2):
        async_compile.AsyncCompile.pool().submit(int).result()
    assert set(threading.enumerate()) > before
    teardown_distributed()
    assert set(threading.enumerate()) <= before
    with config.patch(compile_threads=2):  # they start again on demand
        assert async_compile.AsyncCompile.pool().submit(int).result() == 0
    teardown_distributed()
