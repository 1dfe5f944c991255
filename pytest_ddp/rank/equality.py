"""The ``ddp`` fixture's asserts: compare digests first, then find and show what differs.

Each exchange depends only on what all ranks have received before, so that all ranks take part in
the same exchanges, and fail with the same text.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import hashlib
import itertools
import re
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch

from pytest_ddp.protocol.messages import coded
from pytest_ddp.system.stdlib import pickle

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Gather = Callable[[Any], list[Any]]
"""Every rank's object in rank order, on every rank."""
_CODE = "DDP-050"
"""The code of the ranks' difference in a value."""
_CHUNK = 1 << 16
"""Elements in a chunk: a chunk that differs is exchanged as a whole, an equal one as 16 bytes."""
_SIZE = 16
"""Bytes of a digest."""
_WIDTH = 60
"""Characters of a value that are shown: eight ranks' values fit on a screen."""
_LONGEST = 10_000
"""Characters of a value's text that are exchanged, so that the place of a difference is shown."""
_NAMES = 4
_TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
"""Relative and absolute, those of ``torch.testing.assert_close``; 0 for other dtypes."""
_BY_NAME = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_BY_REPR = (
    *(type(None), bool, int, str, bytes, enum.Enum),
    *(torch.dtype, torch.device, torch.layout, torch.Size),
)
_PARTS = {
    torch.sparse_coo: ("indices", "values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
    torch.jagged: ("offsets", "values"),
}
"""Methods for the dense tensors that a tensor of another layout consists of."""


class Leaf(NamedTuple):
    """One tensor or plain value, as it is exchanged."""

    name: str
    kind: str
    """What must be the same besides the value: type, or dtype, shape and device."""
    share: tuple[int, ...]
    """The rank's part of a sharded tensor; ranks with different parts are not compared."""
    digest: bytes
    text: str
    """The value, if the leaf is not a tensor."""


class Held(NamedTuple):
    """A leaf with what stays on the rank."""

    leaf: Leaf
    value: Any = None
    """A tensor, or an object whose class defines equality."""
    digests: bytes = b""
    """The digests of a tensor's chunks."""


class Distance(NamedTuple):
    """How far a rank's elements are from those of the lowest rank."""

    wrong: int = 0
    """Number of elements that are too far."""
    first: int = -1
    """Index of the first of them, in the flattened tensor."""
    greatest: float = -1
    """The largest difference of any of them."""
    at: int = 0
    """Index of that element."""


def assert_close(
    gather: Gather, rank: int, value: Any, limits: tuple[float, float] | None, name: str
) -> None:
    """Implement :meth:`pytest_ddp.Ddp.assert_close`, and ``assert_same`` by the limits (0, 0)."""
    held = leaves(value)
    if len(set(gather(digest(held)))) == 1:
        return
    tables = gather({name: one.leaf for name, one in held.items()})
    names = dict.fromkeys(itertools.chain.from_iterable(tables))
    rows = {name: [table.get(name) for table in tables] for name in names}
    differing = [name for name, row in rows.items() if len({*_kinds(row)}) > 1 or _unequal(row)]
    for leaf_name in differing:
        text = _difference(gather, rank, rows[leaf_name], held.get(leaf_name), limits)
        if text:
            break
    else:
        return
    if len(rows) > 1:
        named = ", ".join(other or "value" for other in differing[:_NAMES])
        more = ", ..." if len(differing) > _NAMES else ""
        text += f"\n\n{len(differing)} of {len(rows)} entries differ: {named}{more}"
    words = f"ddp.{name}: the ranks differ at {leaf_name or 'value'}{text}"
    raise coded(AssertionError(words), _CODE)


def assert_differ(gather: Gather, value: Any) -> None:
    """Implement :meth:`pytest_ddp.Ddp.assert_differ`."""
    equal = [ranks for ranks in _grouped(gather(digest(leaves(value)))) if len(ranks) > 1]
    if equal:
        shown = gather(_cut(" ".join(_text(value).split()), 0))
        lines = "".join(f"\n  {_ranks(ranks)}  {shown[ranks[0]]}" for ranks in equal)
        words = f"ddp.assert_differ: {_ranks(equal[0])} have the same value\n{lines}"
        raise coded(AssertionError(words), _CODE)


# ------------------------------------------------------------------ what differs, and how


def _grouped(values: Sequence[Any]) -> list[list[int]]:
    """Groups of ranks with equal values; not by hash, since ``==`` may be the test's own."""
    groups: list[list[int]] = []
    for rank, value in enumerate(values):
        same = (ranks for ranks in groups if bool(value == values[ranks[0]]))
        if (ranks := next(same, None)) is not None:
            ranks.append(rank)
        else:
            groups.append([rank])
    return groups


def _kinds(row: Sequence[Leaf | None]) -> list[str]:
    return ["nothing" if leaf is None else leaf.kind for leaf in row]


def _unequal(row: Sequence[Leaf]) -> list[list[int]]:
    """Groups of ranks that should hold the same values, and do not."""
    shares = _grouped([leaf.share for leaf in row])
    return [ranks for ranks in shares if len({row[rank].digest for rank in ranks}) > 1]


def _difference(
    gather: Gather, rank: int, row: list[Any], held: Held | None, limits: tuple[float, float] | None
) -> str:
    """The text after a leaf's name; empty if its values turn out to be equal or close."""
    if len(groups := _grouped(kinds := _kinds(row))) > 1:
        return "\n\n" + _by_rank(groups, kinds)
    assert held is not None
    if isinstance(held.value, torch.Tensor):
        found = (_elements(gather, rank, ranks, held, limits) for ranks in _unequal(row))
        return next(filter(None, found), "")
    by_equality = held.value is not None
    groups = _grouped(gather(held.value) if by_equality else [leaf.digest for leaf in row])
    if len(groups) == 1:
        return ""
    shown = [leaf.text for leaf in row]
    # Cut to where the values begin to differ.
    columns = zip(*shown, strict=False)
    unlike = (place for place, column in enumerate(columns) if len({*column}) > 1)
    common = next(unlike, min(map(len, shown)))
    start = 0 if max(map(len, shown)) <= _WIDTH else max(0, common - _WIDTH // 3)
    return "\n\n" + _by_rank(groups, [_cut(text, start) for text in shown])


def _elements(
    gather: Gather, rank: int, ranks: list[int], held: Held, limits: tuple[float, float] | None
) -> str:
    """Compare a tensor with that of the first of these ranks, chunk by chunk."""
    tensor, name = held.value, held.leaf.name or "value"
    rtol, atol = _TOLERANCES.get(tensor.dtype, (0.0, 0.0)) if limits is None else limits
    exact = limits == (0, 0)
    flat, digests = tensor.reshape(-1), gather(held.digests)
    # All that decides about exchanges is of the compared ranks: others may have other shapes.
    count = len(digests[ranks[0]]) // _SIZE
    pieces = [{digests[r][n * _SIZE : (n + 1) * _SIZE] for r in ranks} for n in range(count)]
    numbers = [number for number, piece in enumerate(pieces) if len(piece) > 1]
    # For `assert_same` one chunk proves the difference. To count, all of them would be sent.
    counts_all = not exact or count == 1
    mine = Distance()
    for number in numbers if counts_all else numbers[:1]:
        chunk = _plain(_chunk(flat, number)) if rank in ranks else None
        theirs = gather(chunk if rank == ranks[0] else None)[ranks[0]]
        if chunk is not None:
            mine = _add(mine, chunk, theirs, number * _CHUNK, rtol, atol)
    found = gather(mine)
    far = [other for other in ranks if found[other].wrong]
    if not far:
        return ""
    first = min(found[other].first for other in far)
    values = gather(_number(_plain(flat[first : first + 1].cpu())) if rank in ranks else "")
    if rank != ranks[0]:
        return str(gather("")[ranks[0]])
    groups = [[ranks[i] for i in group] for group in _grouped([values[r] for r in ranks])]
    lines = [_index(tensor, first), "", _by_rank(groups, values)]
    if tensor.dim() or not exact:
        allowed = "" if exact else f"; allowed: {atol:g} absolute, {rtol:g} relative"
        lines += ["", f"{name} is {held.leaf.kind}{allowed}"]
    for other in far if counts_all and len(lines) > 3 else ():
        wrong, _, greatest, at = found[other]
        place = f" at {_index(tensor, at)}" if tensor.dim() else ""
        amount = f"{wrong} of {tensor.numel()} elements differ from rank {ranks[0]}"
        lines += [f"rank {other}: {amount}; greatest difference {greatest:.3g}{place}"]
    return str(gather("\n".join(lines))[rank])


def _add(
    known: Distance, mine: torch.Tensor, theirs: torch.Tensor, start: int, rtol: float, atol: float
) -> Distance:
    """Compare a chunk whose first element has the index ``start``."""
    wide = torch.complex128 if mine.is_complex() else torch.float64
    if not (rtol or atol or mine.is_complex() or mine.is_floating_point()):
        wide = torch.int64  # large integers lose digits in a float
    here, there = mine.to(wide), theirs.to(wide)
    wrong = ~torch.isclose(here, there, rtol=rtol, atol=atol, equal_nan=True)
    if not bool(wrong.any()):
        return known
    # The difference of a NaN is NaN, which argmax() would not order: count it as infinite.
    difference = (here - there).abs().double().nan_to_num(float("inf")).masked_fill(~wrong, -1)
    at = int(difference.argmax())
    first = known.first if known.wrong else start + int(wrong.nonzero()[0])
    worst = max((known[2:], (difference[at].item(), start + at)), key=lambda pair: pair[0])
    return Distance(known.wrong + int(wrong.sum()), first, *worst)


# ------------------------------------------------------------------ leaves of a value


def leaves(value: Any) -> dict[str, Held]:
    """All leaves of a value by name, in its own order.

    Raises:
        TypeError: it contains something that can neither be taken apart nor pickled.
    """
    found: dict[str, Held] = {}
    with torch.no_grad():
        for held in _walk(value, "", ()):
            name = held.leaf.name
            while name in found:  # keys of a dict may have the same repr
                name += "'"
            found[name] = held._replace(leaf=held.leaf._replace(name=name))
    return found


def digest(held: Mapping[str, Held]) -> bytes:
    """One digest for all these leaves."""
    return _hash(repr([one.leaf[:4] for one in held.values()]))


def _walk(value: Any, name: str, above: tuple[int, ...]) -> Iterator[Held]:
    if id(value) in above:
        yield _held(name, "a cycle", f"what is {len(above) - above.index(id(value))} above")
        return
    if (tensor := _as_tensor(value)) is not None:
        is_number = isinstance(value, float | complex) and type(value).__module__ != "numpy"
        described = _type(value) if is_number else _describe(tensor)
        for part, dense in _dense_parts(tensor.detach()):
            # The number of elements of a sparse tensor is part of its value.
            kind = described if not part else f"{_describe(dense)}, in {described}"
            digests = b"".join(map(_digest, _chunks(dense)))
            leaf = Leaf(name + part, kind, _share(tensor), _hash(digests), "")
            yield Held(leaf, dense, digests)
        return
    above = (*above, id(value))
    if isinstance(value, Set):  # one leaf, since the elements have no order
        found = sorted((digest(leaves(part)), repr(part)) for part in value)
        shown = f"{{{', '.join(sorted(text for _, text in found))}}}"
        yield _held(name, _type(value), shown, b"".join(part for part, _ in found))
        return
    text, parts = _apart(value)
    if text is None and parts is None:
        yield _pickled(value, name)
        return
    if text is not None:
        yield _held(name, _type(value), text)
    for suffix, part in parts or ():
        yield from _walk(part, f"{name}{suffix}" if name else suffix.removeprefix("."), above)


def _apart(value: Any) -> tuple[str | None, Iterable[tuple[str, Any]] | None]:
    """What is compared of a value itself, and its parts with suffixes for its name."""
    kind = _type(value)
    own_equality: Any = type(value).__eq__  # that of `object` only compares identity
    match value:
        case _ if isinstance(value, _BY_REPR):
            return repr(value), ()
        case _ if isinstance(value, _BY_NAME):
            return f"{value.__module__}.{value.__qualname__}" if hasattr(
                value, "__qualname__"
            ) else repr(value), ()
        case torch.nn.Module():
            named = value.named_parameters, value.named_buffers
            return None, ((f".{n}", t) for of in named for n, t in of(remove_duplicate=False))
        case Mapping():
            order = repr(list(value)) if isinstance(value, OrderedDict) else kind
            return order, ((f"[{key!r}]", part) for key, part in value.items())
        case list() | tuple():
            return f"{len(value)} elements", ((f"[{i}]", part) for i, part in enumerate(value))
        case _ if callable(state := getattr(value, "state_dict", None)):
            return None, [("", state())]
        case torch.Generator():
            return None, [(".get_state()", value.get_state())]
        case _ if dataclasses.is_dataclass(value):
            fields = (field.name for field in dataclasses.fields(value) if field.compare)
            return kind, ((f".{name}", getattr(value, name)) for name in fields)
        case _ if own_equality is object.__eq__ and (parts := _variables(value)) is not None:
            return kind, ((f".{name}", part) for name, part in parts.items())
    return None, None


def _variables(value: Any) -> dict[str, Any] | None:
    found = dict(getattr(value, "__dict__", {}))
    slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
    found |= {slot: getattr(value, slot) for slot in slots if hasattr(value, slot)}
    return found if found or slots or hasattr(value, "__dict__") else None


def _pickled(value: Any, name: str) -> Held:
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return _held(name, f"{_type(value)} of {value.dtype}", repr(value.tolist()))
    try:
        data = pickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"{name or 'the value'} is of {_type(value)}, which cannot be pickled: {error}\n"
            "Compare a part of it that is a tensor or plain data."
        ) from None
    return _held(name, _type(value), _text(value), data)._replace(value=value)


def _held(name: str, kind: str, text: str, data: bytes | None = None) -> Held:
    return Held(Leaf(name, kind, (), _hash(text if data is None else data), text[:_LONGEST]))


# ------------------------------------------------------------------ tensors


def _as_tensor(value: Any) -> torch.Tensor | None:
    """A tensor, number or numpy array as a tensor; None for anything else."""
    if isinstance(value, torch.Tensor):
        return value
    if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        try:
            return torch.as_tensor(value.copy())
        except (TypeError, ValueError, RuntimeError):  # strings, objects, dates
            return None
    if isinstance(value, float | complex):
        dtype = torch.float64 if isinstance(value, float) else torch.complex128
        return torch.tensor(value, dtype=dtype, device="cpu")
    return None


def is_dtensor(tensor: torch.Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is distributed over a device mesh.

    Its class is not imported for that, which takes 0.7 to 1.2 s of CPU in each rank: without its
    module there are no such tensors.
    """
    module = sys.modules.get("torch.distributed.tensor")
    return isinstance(tensor, getattr(module, "DTensor", ()))


def _dense_parts(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The dense tensors that a tensor consists of, each with a suffix for its name.

    Of a DTensor it is the local part: to assemble the whole would be a collective on a group under
    test.
    """
    if is_dtensor(tensor):
        yield from _dense_parts(tensor.to_local())
        return
    tensor = tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor
    methods = _PARTS.get(tensor.layout, ())
    if tensor.is_quantized:
        one_scale = tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)
        more = ("q_scale", "q_zero_point")
        channels = ("q_per_channel_scales", "q_per_channel_zero_points")
        methods = ("int_repr", *(more if one_scale else channels))
    for method in methods:
        part = getattr(tensor, method)()
        dtype = torch.float64 if isinstance(part, float) else None
        yield f".{method}()", torch.as_tensor(part, dtype=dtype)
    if not methods:
        yield "", tensor


def _describe(tensor: torch.Tensor) -> str:
    """What must be the same besides the values; for the device, only its type."""
    words = [str(tensor.dtype).removeprefix("torch."), f"of shape {tuple(tensor.shape)}"]
    if tensor.layout is not torch.strided:
        words.append(str(tensor.layout).removeprefix("torch."))
    if is_dtensor(tensor):
        words.append(f"with {tensor.placements} on a mesh of {tuple(tensor.device_mesh.shape)}")
    return " ".join([*words, f"on {tensor.device.type}"])


def _share(tensor: torch.Tensor) -> tuple[int, ...]:
    """The part of a DTensor that this rank holds; ranks with the same part are replicas."""
    if not is_dtensor(tensor):
        return ()
    place: Sequence[int] = tensor.device_mesh.get_coordinate() or []
    pairs = zip(tensor.placements, place, strict=False)
    return tuple(-1 if placement.is_replicate() else at for placement, at in pairs)


def _chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The elements in order, in chunks, on the CPU."""
    if tensor.device.type != "meta":
        flat = tensor.reshape(-1)
        yield from (_chunk(flat, number) for number in range(-(-flat.numel() // _CHUNK)))


def _chunk(flat: torch.Tensor, number: int) -> torch.Tensor:
    return flat[number * _CHUNK : (number + 1) * _CHUNK].cpu()


def _plain(chunk: torch.Tensor) -> torch.Tensor:
    """A copy to be sent, without the storage of the tensor that it is a part of.

    Floats of less than 32 bits become 32 bits, exactly: those of 8 can be neither pickled nor
    compared.
    """
    chunk = chunk.resolve_conj().resolve_neg()
    return chunk.float() if chunk.is_floating_point() and chunk.itemsize < 4 else chunk.clone()


def _digest(chunk: torch.Tensor) -> bytes:
    """Equal values have equal digests: 0.0 and -0.0, NaN and NaN."""
    chunk = torch.view_as_real(chunk.resolve_conj()) if chunk.is_complex() else chunk
    if chunk.is_floating_point():
        chunk = _plain(chunk)
        chunk += 0.0
        chunk.masked_fill_(chunk != chunk, float("nan"))
    chunk = chunk.resolve_neg().contiguous()
    size = chunk.numel() * chunk.itemsize
    # Not through numpy: torch may be installed without it, and it has no bfloat16.
    return _hash((ctypes.c_char * size).from_address(chunk.data_ptr()) if size else b"")


def _hash(data: Any) -> bytes:
    data = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    return hashlib.blake2b(data, digest_size=_SIZE).digest()


# ------------------------------------------------------------------ texts


def _by_rank(groups: Sequence[Sequence[int]], shown: Sequence[str]) -> str:
    """A line for each group of ranks."""
    width = max(len(_ranks(ranks)) for ranks in groups)
    return "\n".join(f"  {_ranks(ranks):{width}}  {shown[ranks[0]]}" for ranks in groups)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _index(tensor: torch.Tensor, place: int) -> str:
    """``[3, 17]``; empty for a scalar."""
    if not tensor.dim():
        return ""
    places = torch.unravel_index(torch.tensor(place, device="cpu"), tensor.shape)
    return f"[{', '.join(str(int(number)) for number in places)}]"


def _number(element: torch.Tensor) -> str:
    """An element's value with enough digits to tell it from any other value of its dtype."""
    if not (element.is_floating_point() or element.is_complex()):
        return str(element.item())
    digits = 9 if element.dtype in (torch.float32, torch.complex64) else 17
    return format(element.item(), f".{digits}g")


def _text(value: Any) -> str:
    """A value's repr; its attributes, where the repr would be its address."""
    own: Any = type(value).__repr__
    if own is object.__repr__ and hasattr(value, "__dict__"):
        return f"{type(value).__qualname__}({vars(value)})"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _type(value: Any) -> str:
    kind = type(value)
    prefix = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{prefix}{kind.__qualname__}"


def _cut(text: str, start: int) -> str:
    before, after = "..." * (start > 0), "..." * (len(text) > start + _WIDTH)
    return f"{before}{text[start : start + _WIDTH]}{after}"
