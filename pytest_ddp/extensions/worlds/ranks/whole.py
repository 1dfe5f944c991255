"""Values by name, each whole: what a rank holds of a model, of gradients or of a state dict."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from numbers import Number
from typing import Any

import torch

Values = dict[str, torch.Tensor | None]
"""Tensors by their names in the plain model; None for a gradient that there is not."""

_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of a name that DDP, torch.compile, FSDP1 and activation checkpointing add."""


def whole_values(value: object) -> Values:
    """The values of a module, a tensor, a number, or a dict of these, each on this rank as a whole.

    A module stands for its parameters, a tied one under each of its names. DTensors are put
    together, Partial ones too: all ranks of their mesh must call this in the same order. Sparse
    tensors become dense.

    Returns:
        detached tensors by name; the name of a value that is not in a dict is empty.

    Raises:
        TypeError: there is something else in it.
        ValueError: FSDP1 holds the parameters flat, or two names differ in a wrapper's part alone.
    """
    found: Values = {}
    for name, leaf in _leaves("", value):
        plain = ".".join(part for part in name.split(".") if part not in _WRAPPERS)
        if plain in found:
            raise ValueError(f"two values have the name {plain!r} without the wrappers' parts")
        found[plain] = None if leaf is None else _whole(leaf)
    return found


def _leaves(name: str, value: object) -> Iterator[tuple[str, torch.Tensor | None]]:
    match value:
        case None | torch.Tensor():
            yield name, value
        case bool() | int():
            yield name, torch.tensor(value)
        case float() | complex() | Number():
            number: Any = value
            wide = torch.complex128 if isinstance(value, complex) else torch.float64
            yield name, torch.tensor(number, dtype=wide)
        case torch.nn.Module():
            _refuse_flat_parameters(value)
            for inner, parameter in value.named_parameters(remove_duplicate=False):
                yield _joined(name, inner), parameter
        case Mapping():
            for key, inner in value.items():
                yield from _leaves(_joined(name, str(key)), inner)
        case _:
            of = f"{name} is" if name else "the value is"
            raise TypeError(
                f"{of} a {type(value).__name__}, and not a module, a tensor, a number, or a dict "
                "of these"
            )


def _joined(name: str, inner: str) -> str:
    return f"{name}.{inner}" if name else inner


def _refuse_flat_parameters(module: torch.nn.Module) -> None:
    fsdp1 = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    if fsdp1 is not None and any(
        isinstance(inner, fsdp1.FullyShardedDataParallel) for inner in module.modules()
    ):
        raise ValueError(
            "FSDP1 holds parameters flat and in parts: use FSDP2 (fully_shard), or give\n"
            "  get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))"
        )


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    full_tensor = getattr(tensor, "full_tensor", None)  # a DTensor's
    whole: torch.Tensor = tensor if full_tensor is None else full_tensor()
    return (whole if whole.layout is torch.strided else whole.to_dense()).detach()
