"""The table of differences against torch's own documents and headers, and the page."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pytest_ddp.extensions.portable.calls import differences, layout_of
from pytest_ddp.extensions.portable.differences import (
    CONTIGUOUS,
    DENSE,
    DIFFERENCES,
    NCCL_DTYPES,
    SPARSE,
    WITH_GAPS,
)

_HEADERS = Path(str(torch.__file__)).parent / "include/torch/csrc/distributed/c10d"
_NAMES = {
    "kChar": "int8",
    "kByte": "uint8",
    "kFloat": "float32",
    "kDouble": "float64",
    "kInt": "int32",
    "kLong": "int64",
    "kHalf": "float16",
    "kBool": "bool",
    "kBFloat16": "bfloat16",
}


def test_dtypes_are_those_of_torchs_header() -> None:
    text = (_HEADERS / "NCCLUtils.hpp").read_text()
    table = text.partition("ncclDataType = {")[2].partition("};")[0]
    names = set(re.findall(r"at::(k\w+)", table))
    assert {_NAMES.get(name, name[1:].lower()) for name in names} == NCCL_DTYPES


@pytest.mark.parametrize(
    ("said_by", "words"),
    [
        (dist.ReduceOp, "reductions are not available when using the ``NCCL`` backend"),
        (dist.ReduceOp, "``PREMUL_SUM`` is available with the ``NCCL`` backend"),
        (dist.isend, "``tag`` is not supported with the NCCL backend"),
        (dist.irecv, "``tag`` is not supported with the NCCL backend"),
        (dist.monitored_barrier, "only supported with the GLOO backend"),
        (dist.reduce, "Only the process with rank ``dst`` is going to receive the final result"),
        (dist.batch_isend_irecv, "will not cause deadlocks"),
        (dist.batch_isend_irecv, "all ranks of the ``group`` must participate in this API call"),
    ],
)
def test_torchs_documents_contain_the_words(said_by: object, words: str) -> None:
    assert words in " ".join((inspect.getdoc(said_by) or "").split())


def _rows(form: str, *args: object, reduce_op: str | None = None) -> list[str]:
    return [row.name for row in differences(form, args, reduce_op)]


@pytest.mark.parametrize(
    ("tensor", "layout"),
    [
        (torch.ones(4, 4), CONTIGUOUS),
        (torch.ones(0, 4).t(), CONTIGUOUS),
        (torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last), CONTIGUOUS),
        (torch.ones(2, 3, 4, 4, 4).to(memory_format=torch.channels_last_3d), CONTIGUOUS),
        (torch.ones(4, 3).t(), DENSE),
        (torch.ones(8)[::2], WITH_GAPS),
        (torch.ones(1).expand(4), WITH_GAPS),
        (torch.ones(4, 4)[:, :2], WITH_GAPS),
        (torch.eye(4).to_sparse(), SPARSE),
    ],
)
def test_layouts(tensor: torch.Tensor, layout: str) -> None:
    assert layout_of(tensor) == layout


def test_only_the_checked_arguments_of_an_operation_matter() -> None:
    gaps, whole = torch.ones(8)[::2], torch.ones(4)
    assert _rows("all_gather", [[gaps, gaps]], [whole]) == []
    assert _rows("all_gather", [[whole, whole]], [gaps]) == ["contiguous"]
    assert _rows("reduce_scatter", [gaps], [[whole, whole]]) == ["contiguous"]
    assert _rows("reduce_scatter", [whole], [[gaps, gaps]]) == []


@pytest.mark.parametrize("op", ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "PREMUL_SUM"])
def test_what_nccl_reduces_is_not_a_difference(op: str) -> None:
    for name in NCCL_DTYPES:
        tensor = torch.zeros(4).to(getattr(torch, name))
        assert _rows("all_reduce", [tensor], reduce_op=op) == []


def test_operations_without_tensors_are_fine() -> None:
    assert _rows("barrier", torch.ones(1)) == []


def test_names_are_unique_and_rows_complete() -> None:
    assert len({row.name for row in DIFFERENCES}) == len(DIFFERENCES)
    assert all(
        row.what and row.nccl and row.gloo and row.instead and row.source for row in DIFFERENCES
    )
