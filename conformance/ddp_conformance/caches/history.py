"""What ranks saw of a shared cache: its tensors, who produced them, who read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddp_conformance.framework.history import Record


@dataclass(frozen=True, slots=True)
class CachedTensor(Record):
    """One tensor of the cache, as this rank has it."""

    key: str
    when: Literal["opened", "read"]
    """Right after the cache was opened, before any other rank was waited for; or when all
    ranks and workers had read all samples."""
    device: str
    detached: bool
    memory: str
    """Device, inode and offset of the file behind it, equal for ranks that map the same
    memory; empty for memory of this process alone."""
    digest: str
    """The digest of dtype, shape and bytes; empty where there are none to read."""


@dataclass(frozen=True, slots=True)
class CacheOpen(Record):
    """The cache is open on this rank."""

    count: int
    """Number of samples: ``len(cache)``."""


@dataclass(frozen=True, slots=True)
class Produced(Record):
    """The samples that the cache is built of were produced."""

    count: int
    digests: tuple[tuple[str, str], ...]
    """Key and digest of each tensor."""


@dataclass(frozen=True, slots=True)
class NewFiles(Record):
    """A launched rank has opened the cache, or was killed while it built it."""

    count: int
    """New files with content that the rank has seen until then."""
    killed: bool


@dataclass(frozen=True, slots=True)
class DeviceUse(Record):
    """Whether a DataLoader worker has initialised CUDA, or has tried to."""

    worker: int
    """Number of the worker, which has read a sample."""
    initialised: bool
