"""Turns tensors into what can be compared: dense parts, in chunks of elements, with digests."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

CHUNK = 1 << 16
"""Elements in a chunk: a chunk that differs is exchanged as a whole, an equal one as 16 bytes."""
_SIZE = 16


def parts(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The dense tensors that a tensor consists of, each with a suffix for its name.

    Of a DTensor it is the local part: to assemble the whole would be a collective on a group under
    test.
    """
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        yield from parts(tensor.to_local())
    elif tensor.is_quantized:
        yield ".int_repr()", tensor.int_repr()
        yield from _scales(tensor)
    elif tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        yield ".indices()", tensor.indices()
        yield ".values()", tensor.values()
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield ".crow_indices()", tensor.crow_indices()
        yield ".col_indices()", tensor.col_indices()
        yield ".values()", tensor.values()
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield ".ccol_indices()", tensor.ccol_indices()
        yield ".row_indices()", tensor.row_indices()
        yield ".values()", tensor.values()
    elif tensor.layout is torch.jagged:
        jagged: Any = tensor
        yield ".offsets()", jagged.offsets()
        yield ".values()", tensor.values()
    else:
        yield "", tensor


def _scales(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        yield ".q_scale()", torch.tensor(tensor.q_scale(), dtype=torch.float64)
        yield ".q_zero_point()", torch.tensor(tensor.q_zero_point())
    else:
        yield ".q_per_channel_scales()", tensor.q_per_channel_scales()
        yield ".q_per_channel_zero_points()", tensor.q_per_channel_zero_points()


def describe(tensor: torch.Tensor) -> str:
    """What must be the same besides the values; for the device, only its type."""
    words = [str(tensor.dtype).removeprefix("torch."), f"of shape {tuple(tensor.shape)}"]
    if tensor.layout is not torch.strided:
        words.append(str(tensor.layout).removeprefix("torch."))
    if isinstance(tensor, DTensor):
        words.append(f"with {tensor.placements} on a mesh of {tuple(tensor.device_mesh.shape)}")
    return " ".join([*words, f"on {tensor.device.type}"])


def share_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Which part of a DTensor this rank holds; ranks with the same part are replicas."""
    if not isinstance(tensor, DTensor):
        return ()
    place: Sequence[int] = tensor.device_mesh.get_coordinate() or []
    return tuple(
        -1 if placement.is_replicate() else coordinate
        for placement, coordinate in zip(tensor.placements, place, strict=False)
    )


def chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The elements in order, in chunks, on the CPU."""
    if tensor.device.type == "meta":
        return
    flat = tensor.reshape(-1)
    for start in range(0, flat.numel(), CHUNK):
        yield flat[start : start + CHUNK].cpu()


def plain(chunk: torch.Tensor) -> torch.Tensor:
    """A chunk to be sent: a copy, without the storage of the tensor that it is a part of.

    Floats with 8 bits can neither be pickled nor compared.
    """
    chunk = chunk.resolve_conj().resolve_neg()
    return chunk.float() if is_short(chunk) else chunk.clone()


def is_short(chunk: torch.Tensor) -> bool:
    """Whether it has floats with less than 32 bits, which can be converted to 32 bits exactly."""
    return chunk.is_floating_point() and chunk.itemsize < 4


def digests(tensor: torch.Tensor) -> bytes:
    """A digest for each chunk; equal values have equal digests: 0.0 and -0.0, NaN and NaN."""
    return b"".join(_digest(_canonical(chunk)) for chunk in chunks(tensor))


def differing(one: bytes, other: bytes) -> Iterator[int]:
    """Numbers of the chunks whose digests differ."""
    for start in range(0, max(len(one), len(other)), _SIZE):
        if one[start : start + _SIZE] != other[start : start + _SIZE]:
            yield start // _SIZE


def _canonical(chunk: torch.Tensor) -> torch.Tensor:
    if chunk.is_complex():
        chunk = torch.view_as_real(chunk.resolve_conj())
    if not chunk.is_floating_point():
        return chunk.resolve_neg().contiguous()
    chunk = plain(chunk)
    chunk += 0.0
    return chunk.masked_fill_(chunk != chunk, float("nan"))


def _digest(chunk: torch.Tensor) -> bytes:
    size = chunk.numel() * chunk.itemsize
    # Not through numpy: torch may be installed without it, and it has no bfloat16.
    view = (ctypes.c_char * size).from_address(chunk.data_ptr()) if size else b""
    return hashlib.blake2b(view, digest_size=_SIZE).digest()
