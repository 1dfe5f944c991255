"""The table of operations, beside the torch that is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # it registers operators

from pytest_ddp.rank.operations import table
from pytest_ddp.rank.operations.table import TABLE, Form

_NOT_DATA = {"sparse_indices"}
"""Arguments that only have where the elements of another argument are."""
_NEWER = {"gather_single"}
"""Forms that torch 2.14 has first."""
HERE = [form for form in TABLE if form.name not in _NEWER or hasattr(dist, form.name)]


def operators(space: str) -> set[str]:
    """torch's names in a namespace."""
    names = map(str, torch._C._dispatch_get_all_op_names())
    return {
        name.removeprefix(f"{space}::").partition(".")[0]
        for name in names
        if name.startswith(f"{space}::")
    }


def public_methods() -> Iterator[str]:
    for name in dir(dist.ProcessGroup):
        value: Any = getattr(dist.ProcessGroup, name)
        is_ours = name in table.BY_METHOD or not name.startswith("_")
        if is_ours and callable(value) and not isinstance(value, type):
            yield name


def test_every_operator_of_torch_is_known() -> None:
    assert operators("c10d") <= table.BY_OPERATOR.keys() | table.NO_OPERATIONS
    known = table.BY_FUNCTIONAL.keys() | table.NO_OPERATIONS | table.UNSEEN
    assert operators("_c10d_functional") <= known


def test_every_method_of_torch_is_known() -> None:
    assert {*public_methods()} <= table.BY_METHOD.keys() | table.OTHER_METHODS


@pytest.mark.parametrize("form", HERE, ids=lambda form: form.name)
def test_torch_has_each_form(form: Form) -> None:
    assert any(hasattr(dist.ProcessGroup, method) for method in form.methods)
    assert {*form.operators} & operators("c10d")
    assert not form.functional or {*form.functional} & operators("_c10d_functional")


@pytest.mark.parametrize("form", HERE, ids=lambda form: form.name)
def test_what_is_counted_read_and_written_is_an_argument(form: Form) -> None:
    for name in {*form.operators} & operators("c10d"):
        schema = getattr(torch.ops.c10d, name).default._schema
        arguments = [argument.name for argument in schema.arguments]
        assert "process_group" in arguments
        assert ("reduce_op" in arguments) is form.reduces
        assert ("root_rank" in arguments) is form.rooted
        tensors = {a.name for a in schema.arguments if "Tensor" in str(a.type)} - _NOT_DATA
        used = {arguments[place] for place in (*form.reads, *form.writes)}
        # Those of the barriers only choose a device.
        assert used == (set() if form.counted is None else tensors)
        assert form.counted is None or arguments[form.counted] in tensors


def test_a_name_has_one_form() -> None:
    for names in ("methods", "operators", "functional", "recorded"):
        every = [name for form in TABLE for name in getattr(form, names)]
        assert len(every) == len({*every}), names


def test_public_names_are_torchs() -> None:
    for form in HERE:
        # Coalesced forms of tensors are reached by torch's context manager alone.
        assert hasattr(dist, form.name.removesuffix("_coalesced"))
        assert form.operation in {other.operation for other in TABLE}


def test_dtypes_are_torchs() -> None:
    for dtype in table.DTYPES:
        assert getattr(torch, dtype.name).itemsize == dtype.nbytes
