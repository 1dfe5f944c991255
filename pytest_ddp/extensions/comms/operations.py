"""torch's names for what a rank communicates, and which of an operator's tensors are counted."""

from __future__ import annotations

from typing import NamedTuple


class Operator(NamedTuple):
    """How an operator of torch's namespace ``c10d`` is shown."""

    operation: str
    """The public name that stands for all forms of it."""
    form: str
    """The public name of this form."""
    sized: str = ""
    """The argument whose tensors are counted; empty for none."""


OPERATORS = {
    "allreduce_": Operator("all_reduce", "all_reduce", "tensors"),
    "allreduce_coalesced_": Operator("all_reduce", "all_reduce_coalesced", "tensors"),
    "allgather_": Operator("all_gather", "all_gather", "output_tensors"),
    "allgather_coalesced_": Operator("all_gather", "all_gather_coalesced", "output_lists"),
    "_allgather_base_": Operator("all_gather", "all_gather_into_tensor", "output_tensor"),
    "allgather_into_tensor_coalesced_": Operator(
        "all_gather", "all_gather_into_tensor_coalesced", "outputs"
    ),
    "reduce_scatter_": Operator("reduce_scatter", "reduce_scatter", "input_tensors"),
    "_reduce_scatter_base_": Operator("reduce_scatter", "reduce_scatter_tensor", "input_tensor"),
    "reduce_scatter_tensor_coalesced_": Operator(
        "reduce_scatter", "reduce_scatter_tensor_coalesced", "inputs"
    ),
    "alltoall_": Operator("all_to_all", "all_to_all", "input_tensors"),
    "alltoall_base_": Operator("all_to_all", "all_to_all_single", "input"),
    "broadcast_": Operator("broadcast", "broadcast", "tensors"),
    "reduce_": Operator("reduce", "reduce", "tensors"),
    "gather_": Operator("gather", "gather", "input_tensors"),
    "scatter_": Operator("scatter", "scatter", "output_tensors"),
    "send": Operator("send", "send", "tensors"),
    "recv_": Operator("recv", "recv", "tensors"),
    "recv_any_source_": Operator("recv", "recv", "tensors"),
    "barrier": Operator("barrier", "barrier"),
    "monitored_barrier_": Operator("monitored_barrier", "monitored_barrier"),
}
"""By torch's own name. Counted are the output of an all_gather, the input of a reduce_scatter and
an all_to_all, else the tensor."""

NOT_COMMUNICATION = frozenset({"check_for_nan"})
"""Operators of the same namespace that send nothing."""

OBJECTS = frozenset(
    {
        *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
        *("send_object_list", "recv_object_list"),
    }
)
"""Collectives of pickled objects: each is one record, whatever it is made of. Their sizes vary with
what is pickled, and their tensors are where the backend has them."""

OPERATIONS = frozenset({operator.operation for operator in OPERATORS.values()}) | OBJECTS
FORMS = frozenset({operator.form for operator in OPERATORS.values()})


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
