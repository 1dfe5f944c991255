"""Takes a value apart into a list of named leaves that can be compared one by one."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Set
from typing import Any

import torch

from pytest_ddp.rank.alike import tensors, texts
from pytest_ddp.system.own import pickle

_SIMPLE = (
    type(None),
    bool,
    int,
    str,
    bytes,
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.Size,
)
_BY_NAME = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_LONGEST = 10_000
"""Characters of a value's text that are kept to be shown."""


@dataclasses.dataclass(frozen=True)
class Summary:
    """What ranks exchange about a leaf."""

    name: str
    kind: str
    """What must be the same besides the value: type, or dtype, shape and device."""
    share: tuple[int, ...]
    """The rank's part of a sharded tensor; ranks with different parts are not compared."""
    digest: bytes
    is_tensor: bool
    text: str
    """The value, if the leaf is not a tensor."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One tensor or plain value."""

    summary: Summary
    value: Any
    digests: bytes = b""
    """Digests of a tensor's chunks."""


def leaves(value: Any) -> list[Leaf]:
    """All leaves of a value, in its own order.

    Raises:
        TypeError: it contains something that can neither be taken apart nor pickled.
    """
    with torch.no_grad():
        return list(_of(value, "", ()))


def digest(found: list[Leaf]) -> bytes:
    """One digest for all these leaves."""
    compared = [(x.name, x.kind, x.share, x.digest) for x in (leaf.summary for leaf in found)]
    return _hash(repr(compared))


def _of(value: Any, name: str, above: tuple[int, ...]) -> Iterator[Leaf]:
    if id(value) in above:
        yield _plain(name, "a cycle", b"", f"what is {len(above) - above.index(id(value))} above")
        return
    above = (*above, id(value))
    if isinstance(value, torch.Tensor):
        yield from _of_tensor(value, name)
    elif (array := _as_tensor(value)) is not None:
        yield from _of_tensor(array, name)
    elif isinstance(value, _SIMPLE):
        yield _plain(name, _type(value), repr(value).encode(), repr(value))
    elif isinstance(value, float | complex):
        kind = torch.float64 if isinstance(value, float) else torch.complex128
        yield _dense(name, _type(value), (), torch.tensor(value, dtype=kind, device="cpu"))
    elif isinstance(value, _BY_NAME):
        text = f"{value.__module__}.{value.__qualname__}" if _has_place(value) else repr(value)
        yield _plain(name, _type(value), text.encode(), text)
    else:
        yield from _of_many(value, name, above)


def _of_many(value: Any, name: str, above: tuple[int, ...]) -> Iterator[Leaf]:
    """The leaves of a value that has parts."""
    if isinstance(value, torch.nn.Module):
        for of_module in (value.named_parameters, value.named_buffers):
            for part, tensor in of_module(remove_duplicate=False):
                yield from _of(tensor, f"{name}.{part}" if name else part, above)
    elif isinstance(value, Set):
        yield from _of_set(value, name, above)
    elif isinstance(value, Mapping):
        yield from _of_mapping(value, name, above)
    elif isinstance(value, list | tuple):
        yield _plain(name, _type(value), str(len(value)).encode(), f"{len(value)} elements")
        for number, element in enumerate(value):
            yield from _of(element, f"{name}[{number}]", above)
    elif callable(state := getattr(value, "state_dict", None)):
        yield from _of(state(), name, above)
    elif isinstance(value, torch.Generator):
        yield from _of(value.get_state(), f"{name}.get_state()", above)
    elif dataclasses.is_dataclass(value):
        yield _plain(name, _type(value), b"", _type(value))
        for field in dataclasses.fields(value):
            if field.compare:
                yield from _of(getattr(value, field.name), f"{name}.{field.name}", above)
    elif not _has_equality(value) and (vars_ := _variables(value)) is not None:
        yield _plain(name, _type(value), b"", _type(value))
        for attribute, part in vars_.items():
            yield from _of(part, f"{name}.{attribute}", above)
    else:
        yield _pickled(value, name)


def _of_mapping(value: Mapping[Any, Any], name: str, above: tuple[int, ...]) -> Iterator[Leaf]:
    order = repr(list(value)) if isinstance(value, OrderedDict) else ""
    yield _plain(name, _type(value), order.encode(), order or _type(value))
    for key, part in value.items():
        yield from _of(part, f"{name}[{key!r}]", above)


def _of_set(value: Set[Any], name: str, above: tuple[int, ...]) -> Iterator[Leaf]:
    """One leaf for all elements, since they have no order."""
    found = sorted((digest(list(_of(part, "", above))), repr(part)) for part in value)
    text = f"{{{', '.join(sorted(text for _, text in found))}}}"
    yield _plain(name, _type(value), b"".join(part for part, _ in found), text)


def _of_tensor(tensor: torch.Tensor, name: str) -> Iterator[Leaf]:
    described, share = tensors.describe(tensor), tensors.share_of(tensor)
    for part, dense in tensors.parts(tensor):
        # The number of elements of a sparse tensor is part of its value.
        kind = described if not part else f"{tensors.describe(dense)}, in {described}"
        yield _dense(f"{name}{part}", kind, share, dense)


def _dense(name: str, kind: str, share: tuple[int, ...], tensor: torch.Tensor) -> Leaf:
    digests = tensors.digests(tensor)
    return Leaf(Summary(name, kind, share, _hash(digests), True, ""), tensor, digests)


def _as_tensor(value: Any) -> torch.Tensor | None:
    """A numpy array or scalar as a tensor; None for anything else."""
    if type(value).__module__ != "numpy" or not hasattr(value, "dtype"):
        return None
    try:
        return torch.as_tensor(value.copy())
    except (TypeError, ValueError, RuntimeError):  # strings, objects, dates
        return None


def _pickled(value: Any, name: str) -> Leaf:
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        data = value.tolist()
        return _plain(name, f"{_type(value)} of {value.dtype}", repr(data).encode(), repr(data))
    try:
        data = pickle.dumps(value)
    except Exception as error:
        where = name or "the value"
        raise TypeError(
            f"{where} is of {_type(value)}, which cannot be pickled: {error}\n"
            "Compare a part of it that is a tensor or plain data."
        ) from None
    return dataclasses.replace(_plain(name, _type(value), data, texts.of(value)), value=value)


def _plain(name: str, kind: str, data: bytes, text: str) -> Leaf:
    summary = Summary(name, kind, (), _hash(data), False, text[:_LONGEST])
    return Leaf(summary, None)


def _variables(value: Any) -> dict[str, Any] | None:
    found = dict(getattr(value, "__dict__", {}))
    slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
    found |= {slot: getattr(value, slot) for slot in slots if hasattr(value, slot)}
    return found if found or slots or hasattr(value, "__dict__") else None


def _has_equality(value: Any) -> bool:
    """Whether its class defines equality; ``object.__eq__`` only compares identity."""
    own: Any = type(value).__eq__
    return own is not object.__eq__


def _has_place(value: Any) -> bool:
    return hasattr(value, "__qualname__")


def _type(value: Any) -> str:
    kind = type(value)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else (f"{kind.__module__}.{kind.__qualname__}")
    )


def _hash(data: bytes | str) -> bytes:
    data = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    return hashlib.blake2b(data, digest_size=16).digest()
