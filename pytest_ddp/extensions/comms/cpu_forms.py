"""Collectives of objects, and branches of torch that communicate otherwise on a CPU."""

from __future__ import annotations

from typing import NamedTuple

OBJECTS = frozenset(
    {
        *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
        *("send_object_list", "recv_object_list"),
    }
)
"""Collectives of pickled objects: each is one record, whatever it is made of. Their sizes vary with
what is pickled, and their tensors are where the backend has them."""


class Branch(NamedTuple):
    """A branch of torch's own Python that communicates otherwise on a CPU or with gloo."""

    file: str
    """In ``torch/distributed``."""
    function: str
    forms: frozenset[str]
    """What it calls there, and not on other devices."""


_INTO_TENSOR = frozenset({"all_gather_into_tensor", "all_gather_into_tensor_coalesced"})
CPU_FORMS = (
    Branch("tensor/_collective_utils.py", "shard_dim_alltoall", _INTO_TENSOR),  # all_to_all
    Branch("fsdp/_flat_param.py", "_all_gather_flat_param", frozenset({"all_gather"})),
    Branch("nn/functional.py", "forward", frozenset({"scatter"})),  # _AlltoAll's all_to_all
)
"""As a test finds them in torch's sources."""
