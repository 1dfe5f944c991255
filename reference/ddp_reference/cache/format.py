"""The file format of a latent cache: written whole or not at all, refused unless sound.

A cache file is a ``torch.save`` archive with a manifest beside its tensors, so that
``torch.load`` reads it anywhere. The manifest counts the samples and digests each tensor.
:func:`find_problems` looks at a file without loading its data: a CUDA tensor is seen, with
its key, on a machine that has no GPU.
"""

import hashlib
import os
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

FORMAT = "ddp_reference.latents"
VERSION = 1

Kind = Literal["missing", "truncated", "foreign", "contaminated", "inconsistent", "modified"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a file must not be read as a cache."""

    kind: Kind
    file: Path
    detail: str
    key: str | None = None
    device: str | None = None

    def __str__(self) -> str:
        where = "" if self.key is None else f", key {self.key!r}"
        device = "" if self.device is None else f", device {self.device}"
        return f"{self.kind} cache {self.file}{where}{device}: {self.detail}"


class CacheError(Exception):
    """A cache file is refused; ``problems`` says why, the message says it in words."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems

    def __reduce__(self) -> tuple[type["CacheError"], tuple[tuple[Problem, ...]]]:
        # Exception's own reduction would hand the message to __init__ when a DataLoader
        # worker or a rank sends the error to another process.
        return CacheError, (self.problems,)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a cache says of itself.

    count: samples, the first dimension of every tensor.
    digests: sha256 of dtype, shape and bytes of each tensor.
    source: how the samples were produced, for people.
    """

    count: int
    digests: Mapping[str, str]
    source: str

    @property
    def digest(self) -> str:
        """One digest of the whole content; readers compare it."""
        text = f"{self.count} " + " ".join(f"{k}={v}" for k, v in sorted(self.digests.items()))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """The place of a tensor in the file; ``offset`` in bytes, None where there is no data."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    device: str
    offset: int | None
    plain: bool

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


@dataclass(frozen=True, slots=True)
class Layout:
    """A file's entries, and its manifest where it has a readable one."""

    file: Path
    entries: Mapping[str, Entry]
    manifest: Manifest | None


def digest_tensor(tensor: Tensor) -> str:
    """sha256 of dtype, shape and bytes of a CPU tensor."""
    flat = tensor.detach().contiguous()
    state = hashlib.sha256(f"{flat.dtype} {tuple(flat.shape)} ".encode())
    if flat.numel():
        state.update(flat.view(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()


def tensor_problems(file: Path, tensors: Mapping[str, Tensor]) -> tuple[Problem, ...]:
    """Why these tensors cannot be shared between processes: asked *before* sharing them.

    ``Tensor.share_memory_()`` does nothing on a CUDA tensor and ``is_shared()`` is then
    true, so the device is the only thing to ask.
    """
    lengths = {tuple(tensor.shape[:1]) for tensor in tensors.values()}
    found = [
        _contaminated(file, key, str(tensor.device))
        for key, tensor in tensors.items()
        if tensor.device.type != "cpu"
    ]
    if len(lengths) != 1 or lengths & {(), (0,)}:
        found.append(_unequal(file, {key: tuple(t.shape) for key, t in tensors.items()}))
    return tuple(found)


def write(path: Path, tensors: Mapping[str, Tensor], source: str) -> Manifest:
    """Publish ``tensors`` (equal first dimension, CPU) at ``path``, whole or not at all.

    The file appears by rename after its bytes are on the disk: a reader sees the old
    file, none, or the complete new one. Raises CacheError and writes nothing when a
    tensor is not on the CPU or the first dimensions differ.
    """
    problems = tensor_problems(path, tensors)
    if problems:
        raise CacheError(problems)
    # clone: a view would drag its whole base storage into the file
    plain = {key: tensor.detach().contiguous().clone() for key, tensor in tensors.items()}
    manifest = Manifest(
        count=len(next(iter(plain.values()))),
        digests={key: digest_tensor(tensor) for key, tensor in plain.items()},
        source=source,
    )
    stored = {
        "format": FORMAT,
        "version": VERSION,
        "count": manifest.count,
        "digests": dict(manifest.digests),
        "source": source,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_whole({"manifest": stored, "tensors": plain}, path)
    return manifest


def save_whole(content: object, path: Path) -> None:
    """torch.save that a reader of ``path`` sees completely or not at all, also after a crash."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o644)  # mkstemp's 0600 would lock out the other readers of the machine
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def read_layout(path: Path, through: Path | None = None) -> Layout:
    """Entries and manifest without the data; raises CacheError for what is no archive of tensors.

    ``through`` names the same file by a descriptor, for a caller who must not be handed
    another file when ``path`` is replaced meanwhile.

    Under FakeTensorMode torch.load keeps the device that each tensor was saved with and
    reads no data; ``_checkpoint_offset`` is PyTorch's documented place of the bytes.
    """
    content = _load_fake(path, through or path)
    tensors = content.get("tensors", content) if isinstance(content, dict) else None
    if not isinstance(tensors, dict) or not tensors:
        raise CacheError((Problem("foreign", path, "holds no dict of tensors"),))
    strange = [key for key, value in tensors.items() if not isinstance(value, Tensor)]
    if strange:
        raise CacheError((Problem("foreign", path, f"{strange[0]!r} is no tensor"),))
    entries = {str(key): _entry(value) for key, value in tensors.items()}
    return Layout(path, entries, _manifest(content.get("manifest")))


def _load_fake(path: Path, through: Path) -> Any:
    if not through.is_file():
        raise CacheError((Problem("missing", path, "no such file; build it first"),))
    try:
        with FakeTensorMode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(through, weights_only=True)
    except Exception as error:  # torch.load raises anything from EOFError to KeyError here
        kind: Kind = "truncated" if _begins_as_archive(through) else "foreign"
        detail = f"not readable as a torch archive ({type(error).__name__}); rebuild it"
        raise CacheError((Problem(kind, path, detail),)) from error


def _begins_as_archive(path: Path) -> bool:
    """An archive that has its beginning but not its directory, which comes last, was cut."""
    with path.open("rb") as file:
        start = file.read(4)
    return start in (b"", b"PK\x03\x04") and not _has_directory(path)


def _has_directory(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 65_557))  # the end record may carry a comment of 64 KiB
        return b"PK\x05\x06" in file.read()


def _entry(tensor: Tensor) -> Entry:
    offset: int | None = getattr(tensor.untyped_storage(), "_checkpoint_offset", None)
    if offset is not None:
        offset += int(tensor.storage_offset()) * tensor.element_size()
    # A gradient or a stride has no place in a shared mapping.
    plain = tensor.is_contiguous() and not tensor.requires_grad
    return Entry(tensor.dtype, tuple(tensor.shape), str(tensor.device), offset, plain)


def _manifest(stored: object) -> Manifest | None:
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        return None
    if stored.get("version") != VERSION:
        return None
    return Manifest(int(stored["count"]), dict(stored["digests"]), str(stored["source"]))


def layout_problems(layout: Layout) -> tuple[Problem, ...]:
    """Everything that can be said against a file without reading its data."""
    file = layout.file
    found = [
        _contaminated(file, key, entry.device)
        for key, entry in layout.entries.items()
        if entry.device != "cpu"
    ]
    if layout.manifest is None:
        found.append(Problem("foreign", file, f"no manifest of {FORMAT!r} version {VERSION}"))
        return tuple(found)
    if layout.manifest.digests.keys() != layout.entries.keys():
        found.append(Problem("inconsistent", file, "manifest and tensors have other keys"))
    lengths = {entry.shape[:1] for entry in layout.entries.values()}
    if lengths != {(layout.manifest.count,)} or layout.manifest.count == 0:
        found.append(_unequal(file, {key: entry.shape for key, entry in layout.entries.items()}))
    found += [
        Problem("inconsistent", file, "strided, misaligned or with gradient; repair it", key)
        for key, entry in layout.entries.items()
        if entry.device == "cpu" and not _mappable(entry)
    ]
    return tuple(found)


def _mappable(entry: Entry) -> bool:
    return entry.plain and entry.offset is not None and entry.offset % entry.dtype.itemsize == 0


def data_problems(
    file: Path, manifest: Manifest, tensors: Mapping[str, Tensor]
) -> tuple[Problem, ...]:
    """Tensors whose bytes are not the ones that the manifest was written for."""
    return tuple(
        Problem("modified", file, "the data differ from the manifest's digest", key)
        for key, tensor in tensors.items()
        if digest_tensor(tensor) != manifest.digests[key]
    )


def _contaminated(file: Path, key: str, device: str) -> Problem:
    hope = (
        "a meta tensor has no data, rebuild the cache"
        if device == "meta"
        else "only CPU tensors can be shared; run: python -m ddp_reference.cache repair"
    )
    return Problem("contaminated", file, hope, key, device)


def _unequal(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> Problem:
    text = ", ".join(f"{key} {shape}" for key, shape in shapes.items())
    return Problem("inconsistent", file, f"the first dimensions must be equal and not 0: {text}")
