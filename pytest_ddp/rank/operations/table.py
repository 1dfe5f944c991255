"""The table of torch's communication operations, and of its dtypes. Imports no torch.

A *form* of an operation is what one public function of ``torch.distributed`` calls: ``all_gather``,
``all_gather_into_tensor`` and their coalesced forms are those of the operation ``all_gather``.
torch has up to four names for a form. A test compares the table with the methods and operators of
the torch that is installed.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Transfer(enum.Enum):
    """How a form's tensors go from rank to rank, where what each rank sends may be uneven."""

    EVEN = enum.auto()
    """All ranks have the same sizes, or there are no tensors."""
    GATHERED = enum.auto()
    """One tensor goes to all; a list has one from each."""
    SCATTERED = enum.auto()
    """A list has a tensor for each; one comes back."""
    EXCHANGED = enum.auto()
    """A list has a tensor for each, and another one from each."""
    SPLIT = enum.auto()
    """One tensor has rows for each, and another one from each."""
    LISTS_GATHERED = enum.auto()
    """Several tensors go to all; a list of lists has those from each."""
    GATHERED_INTO_ONE = enum.auto()
    """Several tensors go to all."""
    SAME_FOR_ALL = enum.auto()
    """The first list goes to all, and as much comes back."""


class NeedRule(enum.Enum):
    """Whom a rank's wait depends on; :mod:`pytest_ddp.deadlock.dependence` has the members."""

    UNKNOWN = enum.auto()
    ALL = enum.auto()
    ALL_WITH_DATA = enum.auto()
    """All others, and nobody where tensors have no elements."""
    ALL_WITHOUT_DATA = enum.auto()
    """All others, also where there is nothing to send."""
    REDUCE = enum.auto()
    BROADCAST = enum.auto()
    SCATTER = enum.auto()
    GATHER = enum.auto()
    PEER = enum.auto()


_FIRST, _SECOND, _NEITHER = (0,), (1,), ()


class Form(NamedTuple):
    """One form of an operation."""

    name: str
    """The public name of this form."""
    operation: str
    """The public name that stands for all forms of the operation."""
    methods: tuple[str, ...]
    """Methods of ``ProcessGroup``; an older torch lacks the last ones, a newer one the first."""
    operators: tuple[str, ...]
    """Operators of the namespace ``c10d``."""
    functional: tuple[str, ...] = ()
    """Operators of the namespace ``_c10d_functional``; the compiler prefers those in place."""
    recorded: tuple[str, ...] = ()
    """The names of gloo's flight recorder; one that stands for several forms is at the first."""
    nccl: tuple[str, ...] = ()
    """NCCL's words, in its own flight recorder."""
    needs: NeedRule = NeedRule.UNKNOWN
    counted: int | None = None
    """The argument of the method, and of the operator, whose tensors are counted as communicated:
    the output of an all_gather, the input of a reduce_scatter and an all_to_all, else the tensor;
    None for none."""
    reads: tuple[int, ...] = _NEITHER
    """Arguments of the operator that are only read."""
    writes: tuple[int, ...] = _NEITHER
    """Arguments of the operator that are written. Of a form with a root both depend on the rank."""
    reduces: bool = False
    rooted: bool = False
    size: int | None = None
    """The argument of the method whose tensors must have one size and dtype on all ranks. None
    where they may be uneven. For gather and scatter the tensor counts that each rank has, not the
    list on the root: gloo fills a part of it without an error."""
    shape: int | None = None
    """The argument of the method that has one shape on all ranks in code that ranks run alike."""
    contradicts: bool = False
    """Whether gloo can never end the operation on ranks with other sizes or dtypes."""
    transfer: Transfer = Transfer.EVEN

    @property
    def is_message(self) -> bool:
        """Whether the operation goes from one rank to another, and is no collective."""
        return self.needs is NeedRule.PEER


# A row is read as a whole: not one name a line.
# fmt: off
TABLE = (
    Form(
        "all_reduce", "all_reduce", ("allreduce",), ("allreduce_",),
        functional=("all_reduce", "all_reduce_"), recorded=("all_reduce", "sparse_all_reduce"),
        nccl=("all_reduce",), needs=NeedRule.ALL_WITH_DATA, counted=0, writes=_FIRST,
        reduces=True, size=0, shape=0, contradicts=True
    ),
    Form(
        "all_reduce_coalesced", "all_reduce", ("allreduce_coalesced",), ("allreduce_coalesced_",),
        functional=("all_reduce_coalesced", "all_reduce_coalesced_"),
        nccl=("allreduce_coalesced",), counted=0, writes=_FIRST, reduces=True, shape=0,
        transfer=Transfer.SAME_FOR_ALL
    ),
    Form(
        "reduce_scatter", "reduce_scatter", ("reduce_scatter",), ("reduce_scatter_",),
        recorded=("reduce_scatter", "_reduce_scatter_base"), nccl=("reduce_scatter",),
        needs=NeedRule.ALL_WITH_DATA, counted=1, reads=_SECOND, writes=_FIRST, reduces=True,
        transfer=Transfer.SCATTERED
    ),
    Form(
        "reduce_scatter_tensor", "reduce_scatter",
        ("_reduce_scatter_base", "reduce_scatter_single"), ("_reduce_scatter_base_",),
        functional=("reduce_scatter_tensor",), nccl=("_reduce_scatter_base",), counted=1,
        reads=_SECOND, writes=_FIRST, reduces=True, size=0, shape=0
    ),
    Form(
        "reduce_scatter_tensor_coalesced", "reduce_scatter",
        ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
        ("reduce_scatter_tensor_coalesced_",), functional=("reduce_scatter_tensor_coalesced",),
        nccl=("reduce_scatter_tensor_coalesced",), counted=1, reads=_SECOND, writes=_FIRST,
        reduces=True, shape=0, transfer=Transfer.SAME_FOR_ALL
    ),
    Form(
        "all_gather", "all_gather", ("allgather",), ("allgather_",), recorded=("all_gather",),
        nccl=("all_gather",), needs=NeedRule.ALL_WITH_DATA, counted=0, reads=_SECOND,
        writes=_FIRST, shape=1, transfer=Transfer.GATHERED
    ),
    Form(
        "all_gather_into_tensor", "all_gather", ("_allgather_base", "all_gather_single"),
        ("_allgather_base_",), functional=("all_gather_into_tensor",),
        recorded=("_allgather_base",), nccl=("_all_gather_base",), needs=NeedRule.ALL_WITH_DATA,
        counted=0, reads=_SECOND, writes=_FIRST, size=1, shape=1
    ),
    Form(
        "all_gather_coalesced", "all_gather", ("allgather_coalesced",), ("allgather_coalesced_",),
        counted=0, reads=_SECOND, writes=_FIRST, shape=1, transfer=Transfer.LISTS_GATHERED
    ),
    Form(
        "all_gather_into_tensor_coalesced", "all_gather",
        ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
        ("allgather_into_tensor_coalesced_",), functional=("all_gather_into_tensor_coalesced",),
        nccl=("all_gather_into_tensor_coalesced",), counted=0, reads=_SECOND, writes=_FIRST,
        shape=1, transfer=Transfer.GATHERED_INTO_ONE
    ),
    Form(
        "reduce", "reduce", ("reduce",), ("reduce_",), recorded=("reduce",), nccl=("reduce",),
        needs=NeedRule.REDUCE, counted=0, writes=_FIRST, reduces=True, rooted=True, size=0,
        shape=0, contradicts=True
    ),
    Form(
        "all_to_all", "all_to_all", ("alltoall",), ("alltoall_",), recorded=("all_to_all",),
        nccl=("all_to_all",), needs=NeedRule.ALL_WITHOUT_DATA, counted=1, reads=_SECOND,
        writes=_FIRST, transfer=Transfer.EXCHANGED
    ),
    Form(
        "all_to_all_single", "all_to_all", ("alltoall_base", "all_to_all_single"),
        ("alltoall_base_",), functional=("all_to_all_single",), counted=1, reads=_SECOND,
        writes=_FIRST, transfer=Transfer.SPLIT
    ),
    Form(
        "broadcast", "broadcast", ("broadcast",), ("broadcast_",),
        functional=("broadcast", "broadcast_"), recorded=("broadcast",), nccl=("broadcast",),
        needs=NeedRule.BROADCAST, counted=0, writes=_FIRST, rooted=True, size=0, shape=0,
        contradicts=True
    ),
    Form(
        "scatter", "scatter", ("scatter",), ("scatter_",), recorded=("scatter",),
        nccl=("scatter",), needs=NeedRule.SCATTER, counted=0, reads=_SECOND, writes=_FIRST,
        rooted=True, size=0
    ),
    Form(
        "gather", "gather", ("gather",), ("gather_",), recorded=("gather",), nccl=("gather",),
        needs=NeedRule.GATHER, counted=1, reads=_SECOND, writes=_FIRST, rooted=True, size=1
    ),
    # torch 2.14 has it, and NCCL, but not gloo.
    Form(
        "gather_single", "gather", ("gather_into_tensor", "gather_single"),
        ("gather_into_tensor_",), nccl=("gather_single",), needs=NeedRule.GATHER, counted=1,
        reads=_SECOND, writes=_FIRST, rooted=True, size=1
    ),
    Form(
        "barrier", "barrier", ("barrier",), ("barrier",), recorded=("barrier",),
        nccl=("all_reduce_barrier",), needs=NeedRule.ALL
    ),
    # gloo builds it from messages, which have no record of their own.
    Form(
        "monitored_barrier", "monitored_barrier", ("monitored_barrier",), ("monitored_barrier_",)
    ),
    Form(
        "send", "send", ("send",), ("send",), recorded=("send",), nccl=("send",),
        needs=NeedRule.PEER, counted=0, reads=_FIRST
    ),
    Form(
        "recv", "recv", ("recv", "recv_anysource"), ("recv_", "recv_any_source_"),
        recorded=("recv",), nccl=("recv",), needs=NeedRule.PEER, counted=0, writes=_FIRST
    ),
)
# fmt: on

BY_NAME = {form.name: form for form in TABLE}
BY_METHOD = {method: form for form in TABLE for method in form.methods}
BY_OPERATOR = {operator: form for form in TABLE for operator in form.operators}
BY_FUNCTIONAL = {operator: form for form in TABLE for operator in form.functional}
_BY_RECORDED = {word: form for form in reversed(TABLE) for word in (*form.nccl, *form.recorded)}

NO_OPERATIONS = frozenset({"check_for_nan", "wait_tensor", "_wrap_tensor_autograd"})
"""Operators of torch's two namespaces that send nothing."""

UNSEEN = frozenset(
    {
        *("all_gather_into_tensor_out", "reduce_scatter_tensor_out"),
        *("isend", "irecv", "batch_p2p_ops"),
    }
)
"""Functional operators that are counted by their group's number alone: Inductor's own, and the
functional messages of torch 2.13, which no public function calls yet."""

OTHER_METHODS = frozenset(
    {
        *("abort", "boxed", "get_group_store", "merge_remote_group", "name", "rank", "set_timeout"),
        *("shutdown", "size", "split_group", "unbox", "use_pg_for_symm_mem_rendezvous"),
        *("get_backend", "get_reconfigure_handle", "new_window", "reconfigure"),
        *(
            f"{verb}_{moment}_hook"
            for verb in ("register", "unregister")
            for moment in ("pre", "post", "abort")
        ),
    }
)
"""Public methods of ``ProcessGroup`` that exchange no tensors."""


def public_name(recorded: str) -> str:
    """The public name of an operation, by the flight recorder's word for it.

    All are public names but those that begin as private methods do.
    """
    form = _BY_RECORDED.get(recorded) if recorded.startswith("_") else None
    return recorded if form is None else form.name


def operation_of_form(name: str) -> str:
    """The operation of a form; a name that is unknown stands for itself."""
    form = BY_NAME.get(name)
    return name if form is None else form.operation


def recorded_as(*needs: NeedRule) -> tuple[str, ...]:
    """The flight recorder's words for what has one of these needs."""
    return tuple(word for form in TABLE if form.needs in needs for word in form.recorded)


CONTRADICT = frozenset(word for form in TABLE if form.contradicts for word in form.recorded[:1])
"""The flight recorder's words for operations that need equal tensors on all ranks."""

UNEVEN = frozenset(recorded_as(NeedRule.ALL_WITHOUT_DATA))
"""The flight recorder's words for operations whose sizes may legally differ."""


class Dtype(NamedTuple):
    """One of torch's dtypes."""

    name: str
    recorded: str
    """The flight recorder's word."""
    nbytes: int
    """Bytes of an element."""


DTYPES = (
    Dtype("bool", "Bool", 1),
    Dtype("uint8", "Byte", 1),
    Dtype("int8", "Char", 1),
    Dtype("int16", "Short", 2),
    Dtype("int32", "Int", 4),
    Dtype("int64", "Long", 8),
    Dtype("float16", "Half", 2),
    Dtype("bfloat16", "BFloat16", 2),
    Dtype("float32", "Float", 4),
    Dtype("float64", "Double", 8),
    Dtype("complex64", "ComplexFloat", 8),
    Dtype("complex128", "ComplexDouble", 16),
)
"""The dtypes that operations are recorded with; a rare one has its recorded word and no size."""

DTYPE_NAMES = {dtype.recorded: dtype.name for dtype in DTYPES}
SIZES = {word: dtype.nbytes for dtype in DTYPES for word in (dtype.name, dtype.recorded)}
"""Bytes of an element, by either name."""
