"""Which backend an operation has in production, and which values a setting may have."""

from __future__ import annotations

import pytest

from pytest_ddp.extensions.portable.options import Production, check

MIXED = "cpu:gloo,cuda:nccl"


@pytest.mark.parametrize(
    ("default", "explicit", "on_host", "backend"),
    [
        ("nccl", None, False, "nccl"),
        ("nccl", None, True, "nccl"),
        ("nccl", "gloo", False, "gloo"),
        ("nccl", MIXED, True, "gloo"),
        (MIXED, None, False, "nccl"),
        (MIXED, None, True, "gloo"),
        (MIXED, "gloo", False, "gloo"),
        (MIXED, "nccl", True, "nccl"),
        (MIXED, "cpu:gloo", False, "gloo"),
        ("cuda:nccl", None, True, "nccl"),
    ],
)
def test_the_backend_of_an_operation(
    default: str, explicit: str | None, on_host: bool, backend: str
) -> None:
    assert Production(default).of(explicit, on_host=on_host) == backend


@pytest.mark.parametrize("value", ["", "off", None])
def test_none(value: object) -> None:
    assert check(value) == ""


def test_as_torch_stores_it() -> None:
    assert check("CPU:Gloo,CUDA:NCCL") == MIXED


@pytest.mark.parametrize(
    "value",
    ["gloo", "auto", "cuda:gloo", "cpu:nccl,cuda:gloo", "nccl,gloo", 1, True, ["nccl"]],
)
def test_wrong(value: object) -> None:
    with pytest.raises(ValueError, match="it is the backend of production"):
        check(value)
