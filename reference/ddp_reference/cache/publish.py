"""Open one cache on all ranks: built once, complete before it is read, equal everywhere."""

import fcntl
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

import torch.distributed as dist
from torch import Tensor

from .format import CacheError, layout_problems, read_layout, write
from .latent_cache import SHARED_MEMORY, LatentCache, Ticket

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make a cache that is not there yet.

    produce: returns CPU tensors with equal first dimension; called on one rank per node.
    source: what ``produce`` did, kept in the manifest.
    """

    produce: Callable[[], Mapping[str, Tensor]]
    source: str


def open_on_all_ranks(
    path: Path, *, recipe: Recipe | None = None, segment_dir: Path | None = SHARED_MEMORY
) -> LatentCache:
    """A :class:`LatentCache` that all ranks of the default process group read together.

    The first rank of each machine builds the file if it is missing and there is a
    ``recipe``, checks it whole, and lays it into shared memory once; the others map that
    memory. Every rank must call this. Without a process group it is
    :meth:`LatentCache.open` with a recipe. Raises CacheError on *every* rank when one
    rank's file is unsound or the ranks would read different caches, and RuntimeError
    with the first error's text on the ranks that only heard of it.
    """
    machine = _machine()
    first = _gather(machine).index(machine)
    own = _try_open(path, recipe, segment_dir) if first == _rank() else None
    offers = _gather(_offer(own))
    failed = next((rank for rank, offer in enumerate(offers) if offer.error), None)
    if isinstance(own, Exception):
        raise own
    if failed is not None:
        _raise_for_peer(path, failed, offers[failed].error)
    cache = _attach(offers[first]) if own is None else own
    # `own` lives until this gather: by then every rank has attached to it.
    seen = _gather((len(cache), cache.digest))
    if len(set(seen)) != 1:
        listed = ", ".join(f"rank {rank}: {n} of {d[:12]}" for rank, (n, d) in enumerate(seen))
        raise RuntimeError(f"ranks read different caches at {path}: {listed}; rebuild one of them")
    return cache


def build(path: Path, recipe: Recipe) -> bool:
    """Build ``path`` unless a sound file is there; True if this call built it.

    Processes that come together wait for the first; the lock dies with its holder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        if path.exists():
            problems = layout_problems(read_layout(path))
            if problems:
                raise CacheError(problems)
            return False
        write(path, recipe.produce(), recipe.source)
        return True


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a rank has for the others: a ticket, an error (its text if it may not pickle)."""

    ticket: Ticket | None = None
    error: CacheError | str | None = None


def _try_open(
    path: Path, recipe: Recipe | None, segment_dir: Path | None
) -> LatentCache | Exception:
    try:
        if recipe is not None:
            build(path, recipe)
        return LatentCache.open(path, segment_dir=segment_dir)
    except Exception as error:  # of any kind: the peers wait for this rank's answer
        return error


def _offer(own: LatentCache | Exception | None) -> _Offer:
    if own is None:
        return _Offer()
    if isinstance(own, LatentCache):
        return _Offer(ticket=own.ticket)
    return _Offer(error=own if isinstance(own, CacheError) else f"{type(own).__name__}: {own}")


def _attach(offer: _Offer) -> LatentCache:
    assert offer.ticket is not None  # the first rank of a machine has one, or an error
    return LatentCache.attach(offer.ticket, adopt=True)


def _raise_for_peer(path: Path, rank: int, error: CacheError | str | None) -> NoReturn:
    if isinstance(error, CacheError):
        raise error
    raise RuntimeError(f"rank {rank} could not open {path}: {error}")


def _machine() -> str:
    """Ranks with equal names share memory; a container has its own hostname."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _gather(value: Value) -> list[Value]:
    if not dist.is_initialized():
        return [value]
    values: list[Value | None] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values  # type: ignore[return-value]


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One builder at a time on a file system that several machines or runs share.

    The directory is locked and not a lock file: nothing is left behind, and no rank
    opens a shared file for writing.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
