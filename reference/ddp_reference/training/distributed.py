"""Begin and end of a distributed run: who am I, on what, and did everyone get through.

Works under ``torchrun``, under anything else that sets RANK, WORLD_SIZE, LOCAL_RANK and
MASTER_ADDR/PORT, with a process group that somebody has already made, and alone.
"""

import gc
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ddp_reference.leaving import leave_group

log = logging.getLogger(__name__)

Backend = Literal["auto", "gloo", "nccl"]
DEFAULT_TIMEOUT = timedelta(minutes=10)
_FAILURE = "first failure"


class World(NamedTuple):
    """This process's place in the run; unpacks as the five values."""

    device: torch.device
    is_distributed: bool
    rank: int
    world_size: int
    local_rank: int


class ConfigError(ValueError):
    """The run is impossible: options, data or checkpoint do not go together."""


class PeerFailureError(RuntimeError):
    """Raised because another rank failed first; the message says which one and how."""


@dataclass(frozen=True, slots=True)
class Vote:
    """What one rank wants and can have; ``obstacle`` is empty where NCCL would work."""

    requested: Backend
    obstacle: str


@dataclass(slots=True)
class _Session:
    """The store outlives the group: a failed rank leaves its reason there."""

    store: Store | None = None
    owns_group: bool = False


_session = _Session()


def setup_distributed(backend: Backend = "auto", timeout: timedelta = DEFAULT_TIMEOUT) -> World:
    """Join the run and say where: ``(device, is_distributed, rank, world_size, local_rank)``.

    The backend is decided by all ranks together: NCCL only if *every* rank has a GPU of
    its own, else gloo for everyone. A rank that fell back alone would wait for ever for
    peers that speak something else. Raises ConfigError on all ranks when they ask for
    different backends, or for NCCL where one of them cannot have it.
    """
    if dist.is_initialized():
        return _adopt_group()
    if "RANK" not in os.environ:
        world = World(_device("nccl" if torch.cuda.is_available() else "gloo", 0), False, 0, 1, 0)
        log.info("single process on %s", world.device)
        return world
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    store, rank, world_size = _rendezvous(timeout)
    vote = Vote(backend, nccl_obstacle(local_rank))
    chosen = agree_on_backend(store, rank, world_size, vote)
    device = _device(chosen, local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        chosen,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    _session.store, _session.owns_group = store, True
    log.info("rank %d of %d: %s on %s", rank, world_size, chosen, device)
    return World(device, True, rank, world_size, local_rank)


def announced_world() -> World:
    """The place in a run that the environment tells of, before ranks have met; on the CPU."""
    rank, world_size, local_rank = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    return World(torch.device("cpu"), "RANK" in os.environ, rank, world_size, local_rank)


def teardown_distributed() -> None:
    """Leave the run: the group that setup_distributed made, and its helpers, are gone.

    A model that holds the group beyond its end may be collected in a DataLoader worker that a
    later run forks, where joining the threads that did not come along is a SIGSEGV or never
    ends (both seen with torch 2.13).
    """
    if _session.owns_group:
        leave_group()
    else:
        gc.collect()
    _session.store, _session.owns_group = None, False
    _stop_compile_helpers()


@contextmanager
def distributed_session(
    backend: Backend = "auto", timeout: timedelta = DEFAULT_TIMEOUT
) -> Iterator[World]:
    """The run as a block that succeeds on every rank or on none.

    A rank that gets through waits for the others, so that a failure after the last
    collective, or an early exit with code 0, still fails them. A rank that fails says so
    in the store before its connections close: the others raise PeerFailureError with the
    cause and not only "connection closed by peer".
    """
    world = setup_distributed(backend, timeout)
    try:
        yield world
        if world.is_distributed:
            dist.barrier()
    except BaseException as error:
        _abandon(world, error)
        if isinstance(error, SystemExit) and not error.code:
            raise RuntimeError(f"rank {world.rank} left the run before its end") from error
        raise
    finally:
        teardown_distributed()


def _abandon(world: World, error: BaseException) -> None:
    text = f"rank {world.rank} failed: {type(error).__name__}: {error}"
    if isinstance(error, ConfigError):  # on all ranks, as a rule
        _first_failure(text)
        return
    log.error("%s", text)
    if dist.is_initialized() and dist.get_backend() == "nccl":
        # Destroying a NCCL group waits for work that the peers will never join;
        # the end of the process frees it.
        _session.owns_group = False
    first = _first_failure(text)
    if first != text:
        raise PeerFailureError(first) from error


def _first_failure(text: str) -> str:
    """Leave ``text`` unless another rank was first; that one's text then."""
    if _session.store is None:
        return text
    try:
        return str(_session.store.compare_set(_FAILURE, "", text).decode())
    except (RuntimeError, OSError) as error:
        # The store may have died with the rank that held it.
        log.warning("cannot ask the store for the first failure: %s", error)
        return text


def nccl_obstacle(local_rank: int) -> str:
    """Why this rank cannot use NCCL; empty if it can."""
    if not torch.cuda.is_available():
        return "no CUDA device is available"
    if not dist.is_nccl_available():
        return "this PyTorch has no NCCL"
    devices = torch.cuda.device_count()
    if local_rank >= devices:
        return f"local rank {local_rank} has no GPU of its own among {devices}"
    return ""


def agree_on_backend(store: Store, rank: int, world_size: int, vote: Vote) -> str:
    """One backend for all ranks, from the votes that all of them leave in the store.

    Every rank computes the same function of the same votes, so that they agree or raise
    together.
    """
    store.set(f"vote/{rank}", json.dumps(asdict(vote)))
    keys = [f"vote/{peer}" for peer in range(world_size)]
    try:
        store.wait(keys)
    except (RuntimeError, OSError) as error:
        missing = [peer for peer, key in enumerate(keys) if not store.check([key])]
        raise RuntimeError(f"ranks {missing} of {world_size} never arrived") from error
    return count_votes([Vote(**json.loads(store.get(key))) for key in keys])


def count_votes(votes: Sequence[Vote]) -> str:
    """The backend for these votes, one per rank; raises ConfigError where there is none."""
    requests = {vote.requested for vote in votes}
    if len(requests) > 1:
        listed = ", ".join(f"rank {rank}: {vote.requested}" for rank, vote in enumerate(votes))
        raise ConfigError(f"ranks ask for different backends: {listed}")
    obstacles = [f"rank {rank}: {v.obstacle}" for rank, v in enumerate(votes) if v.obstacle]
    requested = requests.pop()
    if requested == "nccl" and obstacles:
        raise ConfigError(f"backend nccl is not possible ({obstacles[0]}); ask for auto or gloo")
    if requested == "auto" and obstacles:
        log.info("gloo for all %d ranks, since %s", len(votes), obstacles[0])
    return "gloo" if obstacles or requested == "gloo" else "nccl"


def _rendezvous(timeout: timedelta) -> tuple[Store, int, int]:
    base, rank, world_size = next(rendezvous("env://", timeout=timeout))
    # torchrun keeps one store for all attempts, and a second group on the keys of the
    # first hangs. All ranks of a round arrive before any can come for the next one.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"ddp_reference/{attempt}", base)
    turn = (store.add("arrivals", 1) - 1) // world_size
    return PrefixStore(f"round {turn}", store), rank, world_size


def _adopt_group() -> World:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = _device(dist.get_backend(), local_rank)
    log.info("rank %d of %d: the group that is there, on %s", rank, world_size, device)
    return World(device, True, rank, world_size, local_rank)


def _device(backend: str, local_rank: int) -> torch.device:
    """gloo means CPU for every rank: a run on mixed devices would have no common backend."""
    return torch.device("cuda", local_rank) if backend == "nccl" else torch.device("cpu")


def _stop_compile_helpers() -> None:
    """Inductor's pools of processes and of threads, and the thread of its progress bar.

    Only a run that compiled has imported them; all start again on demand. Inductor's own
    shutdown forgets the threads (torch 2.13).
    """
    inductor = sys.modules.get("torch._inductor.async_compile")
    if inductor is not None:
        inductor.shutdown_compile_workers()
        threads = inductor.AsyncCompile.pool
        if threads.cache_info().currsize:
            threads().shutdown()
            threads.cache_clear()
    tqdm = sys.modules.get("tqdm")
    if tqdm is not None and tqdm.tqdm.monitor is not None:
        tqdm.tqdm.monitor.exit()
        tqdm.tqdm.monitor = None
