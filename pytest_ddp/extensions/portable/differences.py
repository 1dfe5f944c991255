"""What NCCL does not have or does otherwise than gloo: a table. Imports no torch.

Each row is known from the documents or sources that it names, and was seen with :data:`SEEN_WITH`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from pytest_ddp.extensions.portable.finding import FindingKind, PortabilityFinding
from pytest_ddp.rank.operations.table import TABLE

SEEN_WITH = "NCCL 2.28.9 (torch 2.11, an H200)"

CONTIGUOUS, DENSE, WITH_GAPS, SPARSE = "contiguous", "permuted", "with gaps", "sparse"
"""How elements lie in memory: in order (of a memory format), without gaps, with them."""


class Difference(NamedTuple):
    """A row. What is empty holds for all: forms, reduce operations, dtypes."""

    name: str
    what: str
    """What a program asks for."""
    nccl: str
    """What comes of it with NCCL."""
    gloo: str
    """What comes of it with gloo, as a test shows."""
    instead: str
    source: str
    forms: frozenset[str] = frozenset()
    """Names of :data:`~pytest_ddp.rank.operations.table.TABLE`."""
    reduce_ops: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    not_dtypes: frozenset[str] = frozenset()
    """Dtypes that are not meant: all others are."""
    layouts: frozenset[str] = frozenset()
    """Layouts of which one of the tensors has one."""
    places: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    """The arguments whose layout is meant, by form."""
    judged: str = "call"
    """``call``: found in a call of one rank. ``messages``: in those of both ends. ``gloo``: not
    found, as gloo raises. ``values``: in what becomes of a result. ``device``: not found, as it
    takes a GPU to see it."""


NCCL_DTYPES = frozenset(
    {
        *("int8", "uint8", "bool", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64"),
        *("float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    }
)
"""``ncclDataType`` in ``torch/csrc/distributed/c10d/NCCLUtils.hpp``."""
_COMPLEX = frozenset({"complex32", "complex64", "complex128"})

_CPP = "ProcessGroupNCCL.cpp"
_REDUCING = frozenset(form.name for form in TABLE if form.reduces)
_OUT_OF_ORDER = frozenset({DENSE, WITH_GAPS})

DIFFERENCES = (
    Difference(
        "bitwise",
        "a reduction with BAND, BOR or BXOR",
        "ValueError: Cannot use ReduceOp.BAND with NCCL",
        "reduces integers and bool",
        "MIN of 0 and 1 for BAND, MAX for BOR, SUM modulo 2 for BXOR",
        f"torch.distributed.ReduceOp; {_CPP}, getNcclReduceOp",
        forms=_REDUCING,
        reduce_ops=frozenset({"BAND", "BOR", "BXOR"}),
    ),
    Difference(
        "dtype",
        "a tensor of int16, uint16, uint32, uint64, float8_e8m0fnu or another rare dtype",
        "TypeError: Input tensor data type is not supported for NCCL process group; after a send "
        "or recv, later collectives of the thread never run",
        "sends any dtype; its collectives raise",
        "send a view of it as uint8",
        "NCCLUtils.hpp, ncclDataType",
        not_dtypes=NCCL_DTYPES | _COMPLEX,
    ),
    Difference(
        "complex",
        "reduce_scatter of complex tensors",
        "TypeError: Input tensor data type is not supported for NCCL process group",
        "reduces them",
        "torch.view_as_real of them",
        f"{_CPP}: all_reduce, broadcast and reduce take them as real numbers, reduce_scatter not",
        forms=frozenset({"reduce_scatter", "reduce_scatter_tensor"}),
        dtypes=_COMPLEX,
    ),
    Difference(
        "contiguous",
        "a tensor that is not contiguous in a memory format, such as `ones(8)[::2]`",
        "ValueError: Tensors must be contiguous",
        "copies it",
        "contiguous(), and copy the result back; channels_last is legal",
        f"{_CPP}, check_gpu_single_tensor",
        layouts=_OUT_OF_ORDER,
        places={
            "all_reduce": (0,),
            "broadcast": (0,),
            "reduce": (0,),
            "all_gather": (1,),
            "gather": (1,),
            "reduce_scatter": (0,),
            "all_gather_into_tensor": (0, 1),
            "all_to_all": (0, 1),
        },
    ),
    Difference(
        "dense",
        "all_reduce_coalesced of a tensor with gaps",
        "ValueError: Tensors must be non-overlapping and dense",
        "copies it",
        "contiguous(), and copy the result back",
        f"{_CPP}, check_gpu_tensors_same_device",
        layouts=frozenset({WITH_GAPS}),
        places={"all_reduce_coalesced": (0,)},
    ),
    Difference(
        "as it lies",
        "reduce_scatter_tensor of a tensor that is not contiguous",
        "no error: other elements, as it gets the address and the number of elements alone",
        "copies it",
        "contiguous(), and copy the result back",
        f"{_CPP}, _reduce_scatter_base and reduce_scatter_tensor_coalesced, which check nothing",
        layouts=_OUT_OF_ORDER,
        places={
            "reduce_scatter_tensor": (0, 1),
            "reduce_scatter_tensor_coalesced": (0, 1),
        },
    ),
    Difference(
        "sparse",
        "all_reduce of a sparse tensor, as DDP asks for Embedding(sparse=True)",
        "NCCL does not support all_reduce with sparse tensors",
        "reduces it",
        "dense gradients, or a gloo group for them",
        f"{_CPP}, allreduce_sparse",
        layouts=frozenset({SPARSE}),
        places={"all_reduce": (0,)},
    ),
    Difference(
        "any source",
        "recv or irecv without a source",
        "NotImplementedError: ProcessGroupNCCL does not support recvAnysource",
        "receives from whichever rank sends first",
        "name the source",
        f"{_CPP}, recvAnysource",
        forms=frozenset({"recv_any_source"}),
    ),
    Difference(
        "all_gather_coalesced",
        "torch.distributed.all_gather_coalesced",
        "NotImplementedError: ProcessGroupNCCL does not support allgather_coalesced",
        "gathers",
        "all_gather_into_tensor",
        f"{_CPP}, allgather_coalesced",
        forms=frozenset({"all_gather_coalesced"}),
    ),
    Difference(
        "monitored_barrier",
        "torch.distributed.monitored_barrier",
        "ValueError: monitored_barrier is only implemented for GLOO backend.",
        "waits, and names missing ranks",
        "barrier, or a gloo group for it",
        "torch.distributed.monitored_barrier",
        forms=frozenset({"monitored_barrier"}),
    ),
    Difference(
        "tags",
        "messages of a pair of ranks that are received in another order than sent, by tag",
        "values in the wrong tensors, or a hang where sizes differ: it has no tags",
        "pairs them by tag",
        "receive in the order of the sends",
        "torch.distributed.isend: `tag` is not supported with the NCCL backend",
        judged="messages",
    ),
    Difference(
        "head to head",
        "two ranks that both send first, or both receive first, with isend or irecv",
        "hangs, or NCCL's internal error: the messages of a pair run in order, and each waits for "
        "its other end",
        "runs them in any order",
        "batch_isend_irecv, or let one of them receive first",
        "NCCL user guide, Point-to-point communication; NVIDIA/nccl#479; pytorch#109401",
        judged="messages",
    ),
    Difference(
        "ring",
        "ranks that each begin with a message to the next one, with isend or irecv",
        "hangs: the messages of a rank run in order, and each waits for its other end; a pair's "
        "first one may also make a communicator, for which both have to come",
        "runs them in any order",
        "batch_isend_irecv",
        f"{_CPP}, pointToPoint; pytorch#108378",
        judged="messages",
    ),
    Difference(
        "room",
        "a receive with room for more than was sent",
        "the rest of the room is overwritten, or it hangs: both ends must have one count",
        "fills the first part, and leaves the rest",
        "receive into a view of the size that was sent; send the size first where it is not known",
        "NCCL API, ncclRecv; NVIDIA/nccl#1938",
        judged="messages",
    ),
    Difference(
        "first batch",
        "batch_isend_irecv as the first collective of a group, by some of its members",
        "undefined: the batch makes the group's communicator, for which all members have to come",
        "runs it",
        "a collective of the whole group before it, or a group of those that call it",
        "torch.distributed.batch_isend_irecv; ProcessGroupNCCL.cpp, pointToPoint",
        judged="messages",
    ),
    Difference(
        "reduce elsewhere",
        "the tensor of reduce, or what is computed from it, used on another rank than the "
        "destination",
        "it has the rank's own input: the result is on the destination alone",
        "it has a part of the sum, as gloo computes in it",
        "all_reduce, or use it on the destination alone",
        "torch.distributed.reduce; NCCL API, ncclReduce",
        judged="values",
    ),
    Difference(
        "uneven all_gather",
        "all_gather of a list of tensors of different sizes",
        "gathers, as a broadcast of each",
        "RuntimeError: invalid tensor size",
        "pad them, for a test on a CPU",
        f"{_CPP}, allgather",
        judged="gloo",
    ),
    Difference(
        "integer average",
        "AVG of integers",
        "the average, rounded",
        "RuntimeError: result type Float can't be cast",
        "SUM, and divide",
        f"{_CPP}, ncclOp",
        judged="gloo",
    ),
    Difference(
        "scaled sum",
        "PREMUL_SUM",
        "the scaled sum",
        "RuntimeError: Cannot use ReduceOp.PREMUL_SUM with Gloo",
        "scale, and SUM",
        "torch.distributed.ReduceOp",
        judged="gloo",
    ),
    Difference(
        "float8",
        "a collective of float8_e5m2 or float8_e4m3fn",
        "runs, on GPUs that have them; of the fnuz kinds only what moves data does",
        "RuntimeError: Invalid scalar type",
        "a view as uint8, where nothing is reduced",
        "NCCLUtils.hpp, ncclDataType",
        judged="gloo",
    ),
    Difference(
        "transposed message",
        "send or recv of a transposed tensor",
        "runs, if both ends have the same strides",
        "RuntimeError: input tensor has to be contiguous",
        "contiguous()",
        f"{_CPP}, check_gpu_single_tensor",
        judged="gloo",
    ),
    Difference(
        "CPU tensor",
        "a tensor on a CPU",
        "RuntimeError: No backend type associated with device type cpu",
        "runs",
        "move it to the rank's device, or use the backend cpu:gloo,cuda:nccl",
        "ProcessGroup.hpp, getBackend",
        judged="device",
    ),
    Difference(
        "one device",
        "two ranks on one device",
        "ncclInvalidUsage: Duplicate GPU detected",
        "runs",
        "a device for each rank, or `ranks_per_gpu`",
        "torch.distributed.init_process_group",
        judged="device",
    ),
)


ROWS = {row.name: row for row in DIFFERENCES}


def finding_of(
    row: Difference, lines: tuple[tuple[str, str], ...], of: str = ""
) -> PortabilityFinding:
    """The finding for a row.

    Args:
        row: of the table.
        lines: places, as in :class:`PortabilityFinding`.
        of: name of the operation; empty where there are several.
    """
    return PortabilityFinding(
        FindingKind.DIFFERENCE,
        f"{of}: {row.what}" if of else row.what,
        lines,
        f"NCCL: {row.nccl}. Gloo: {row.gloo}. Seen with {SEEN_WITH}, and known from {row.source}.",
        f"{row.instead}.",
    )
