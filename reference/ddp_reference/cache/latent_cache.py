"""Precomputed samples that every rank and every DataLoader worker reads from one memory."""

import errno
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from .format import (
    CacheError,
    Entry,
    Layout,
    Manifest,
    Problem,
    data_problems,
    layout_problems,
    read_layout,
    tensor_problems,
)

SHARED_MEMORY = Path("/dev/shm")


class LatentCache:
    """A sound cache file, mapped: n samples as one tensor per key, on the CPU.

    ``cache[i]`` is sample i as a dict of *copies*, so that a transform that works in place
    spoils its own sample and not everyone's. ``cache.tensor(key)`` is the shared memory
    itself, for readers who promise not to write; :meth:`verify` tells who broke it.

    The data lie in a file without a name in ``segment_dir`` (default /dev/shm): the kernel
    frees it with its last reader, also after SIGKILL. Each process attaches by mapping, so
    worker processes cost no copy, whether they were forked or spawned. With
    ``segment_dir=None`` the cache file itself is mapped copy-on-write: nothing is copied,
    the pages are those of the page cache, and no write can reach the file.

    ``share_memory_()`` is not used: each rank would load and share its own copy.
    """

    def __init__(self, layout: Layout, manifest: Manifest, source: "Source") -> None:
        self._layout = layout
        self._manifest = manifest
        self._source = source
        self._tensors = _map(layout, source)

    @classmethod
    def open(
        cls, path: Path, *, segment_dir: Path | None = SHARED_MEMORY, verify: bool = True
    ) -> "LatentCache":
        """Check ``path`` and map it; the way in for a single process.

        Raises CacheError (file, key and device) when the file is missing, truncated,
        foreign, contaminated or, with ``verify``, differs from its digests, and OSError
        when ``segment_dir`` has no room.
        """
        source = open_file(path)
        layout = read_layout(path, source.path)
        problems = layout_problems(layout)
        if problems or layout.manifest is None:
            raise CacheError(problems)
        if segment_dir is not None:
            source = copy_to_segment(source, segment_dir)
        cache = cls(layout, layout.manifest, source)
        if verify:
            cache.verify()
        return cache

    @classmethod
    def attach(cls, ticket: "Ticket", *, adopt: bool = False) -> "LatentCache":
        """Map the memory of the ticket's cache, in another process of this machine.

        ``adopt`` holds it by a descriptor of this process: a rank needs that, since its
        workers may outlive the rank that made the memory. A worker does not.
        """
        source = Source(ticket.path, shared=ticket.shared)
        return cls(ticket.layout, ticket.manifest, source.adopt() if adopt else source)

    @property
    def ticket(self) -> "Ticket":
        """What another process of this machine needs to map this very memory."""
        return Ticket(self._layout, self._manifest, self._source.path, self._source.shared)

    @property
    def file(self) -> Path:
        return self._layout.file

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._layout.entries)

    @property
    def digest(self) -> str:
        """Digest that the manifest promises; :meth:`verify` compares the memory with it."""
        return self._manifest.digest

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self._layout.entries.values())

    def __len__(self) -> int:
        return self._manifest.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of a cache of {len(self)}: {self.file}")
        return {key: tensor[index].clone() for key, tensor in self._tensors.items()}

    def tensor(self, key: str) -> Tensor:
        """The shared memory of one key, shape (n, ...): not to be written."""
        return self._tensors[key]

    def verify(self) -> None:
        """Compare the memory with the manifest; CacheError names every key that differs."""
        problems = data_problems(self.file, self._manifest, self._tensors)
        if problems:
            raise CacheError(problems)

    def close(self) -> None:
        """Let go of the memory; it is freed when no process holds it."""
        self._tensors = {}
        self._source.close()

    def __enter__(self) -> "LatentCache":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, tuple["Ticket"]]:
        # A spawned worker maps the memory again; the tensors never travel.
        return LatentCache.attach, (self.ticket,)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A cache as it travels between processes: no data, only the place where they lie."""

    layout: Layout
    manifest: Manifest
    path: Path
    shared: bool


class Source:
    """An open file to map, reached by its descriptor.

    A descriptor goes on naming the file that was checked when another one is renamed to
    its path, and reaches a file that has no path at all.
    """

    def __init__(self, path: Path, *, shared: bool, descriptor: int | None = None) -> None:
        self.path = path
        self.shared = shared
        self._release = None if descriptor is None else weakref.finalize(self, os.close, descriptor)

    def adopt(self) -> "Source":
        """Open the same file by a descriptor of this process.

        ``path`` leads through /proc to the descriptor of another process and ends with it.
        """
        access = os.O_RDWR if self.shared else os.O_RDONLY
        return _hold(os.open(self.path, access | os.O_CLOEXEC), shared=self.shared)

    def close(self) -> None:
        if self._release is not None:
            self._release()


def _hold(descriptor: int, *, shared: bool) -> Source:
    path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
    return Source(path, shared=shared, descriptor=descriptor)


def open_file(path: Path) -> Source:
    """The cache file itself, to be mapped copy-on-write."""
    try:
        return _hold(os.open(path, os.O_RDONLY | os.O_CLOEXEC), shared=False)
    except FileNotFoundError as error:
        raise CacheError((Problem("missing", path, "no such file; build it first"),)) from error


def copy_to_segment(source: Source, directory: Path) -> Source:
    """Copy a file into a nameless one of ``directory``, to be mapped shared.

    The room is reserved first: a full /dev/shm is an OSError here, with the sizes in its
    text, and not a SIGBUS in whichever rank first touches a missing page.
    """
    size = source.path.stat().st_size
    descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    segment = _hold(descriptor, shared=True)
    _reserve(descriptor, size, directory)
    with source.path.open("rb") as file:
        done = 0
        while done < size:
            done += os.sendfile(descriptor, file.fileno(), done, size - done)
    return segment


def _reserve(segment: int, size: int, directory: Path) -> None:
    try:
        os.posix_fallocate(segment, 0, size)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        free = os.statvfs(directory)
        text = (
            f"{directory} has {free.f_bavail * free.f_frsize} bytes free, the cache needs {size}: "
            "enlarge it (docker run --shm-size=...), or pass segment_dir=None to map the file"
        )
        raise OSError(errno.ENOSPC, text) from error


def _map(layout: Layout, source: Source) -> Mapping[str, Tensor]:
    size = source.path.stat().st_size
    storage = _storage(source, size)
    tensors = {key: _view(storage, entry) for key, entry in layout.entries.items()}
    problems = tensor_problems(layout.file, tensors)
    if problems:
        raise CacheError(problems)
    if source.shared and not storage.is_shared():
        raise CacheError((Problem("inconsistent", layout.file, "the mapping is not shared"),))
    return tensors


def _storage(source: Source, size: int) -> torch.UntypedStorage:
    storage = torch.UntypedStorage.from_file(str(source.path), source.shared, size)
    assert isinstance(storage, torch.UntypedStorage)  # torch declares it wider
    return storage


def _view(storage: torch.UntypedStorage, entry: Entry) -> Tensor:
    assert entry.offset is not None  # layout_problems refuses an entry without data
    empty = torch.empty(0, dtype=entry.dtype)
    strides = torch.empty(entry.shape, device="meta").stride()
    return empty.set_(storage, entry.offset // entry.dtype.itemsize, entry.shape, strides)
