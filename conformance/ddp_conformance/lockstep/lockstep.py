"""Collectives one at a time: what one rank would wait for in vain is seen, not waited for.

Before each collective of the whole process group the ranks tell one another, by
``Ranks.gather``, which one comes. It is started only if all of them name the same. So a
component whose ranks disagree cannot hang the check, nor abort gloo with tensors of
different sizes, nor pair one rank's metric with another one's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeAlias
from unittest import mock

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from ddp_conformance.framework import nemesis
from ddp_conformance.framework.history import Collective, without_ones
from ddp_conformance.framework.places import call_site
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.verdict import ranks_in_words

END = "no more collectives"
"""What a rank announces that has left the component's code."""

COLLECTIVES: dict[str, int | None] = {
    "allreduce": 0,
    "allreduce_coalesced": 0,
    "allgather": 1,
    "allgather_coalesced": 1,
    "_allgather_base": 1,
    "all_gather_single": 1,
    "broadcast": 0,
    "reduce": 0,
    "gather": None,
    "scatter": None,
    "reduce_scatter": None,
    "_reduce_scatter_base": 0,
    "reduce_scatter_single": 0,
    "alltoall": None,
    "alltoall_base": None,
    "all_to_all_single": None,
    "barrier": None,
    "monitored_barrier": None,
    "split_group": None,
}
"""Methods of ``ProcessGroup``, and which argument must have one dtype and shape on all ranks."""

REDUCING = {
    *("allreduce", "allreduce_coalesced", "reduce"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single"),
}
"""Those with a reduce operation, which must be one on all ranks."""

ROOTED = {"broadcast", "reduce", "gather", "scatter"}
"""Those with a root, which must be one for all ranks."""

NEW_GROUP = "new_group"
"""What all ranks must call, members or not, unless it synchronises its members alone."""

Before: TypeAlias = Callable[[dist.ProcessGroup, str, str], None]
"""Is called with the group, the operation and its description."""

Meet: TypeAlias = Callable[[str, Sequence[int]], bool]
"""Waits for the members of the group of that name; False if one of them will never come."""


class DivergedError(RuntimeError):
    """The ranks are about to make different collectives; raised on all of them."""


class Lockstep:
    """What the ranks announced; of groups that leave out ranks, only where they ``meet``."""

    def __init__(self, ranks: Ranks, meet: Meet | None = None) -> None:
        self._ranks = ranks
        self._meet = meet
        self.calls: list[Collective] = []
        """What this rank announced, in order; the last one may never have been started."""
        self.diverged = False
        """Some rank announced something else; nothing was started from there on."""

    def come(self, group: dist.ProcessGroup, operation: str, what: str) -> None:
        """Announce a collective of all ranks, or one of fewer for which one of them never comes."""
        if group.size() == self._ranks.world_size:
            self.announce(what, call_site())
        elif self._meet is not None:
            members = dist.get_process_group_ranks(group)
            if not self._meet(group.group_name, members):
                self.announce(f"{what} of {ranks_in_words(members)}", call_site())

    def announce(self, what: str, site: str = "") -> None:
        """Tell the other ranks what comes; raises :class:`DivergedError` if they differ."""
        if self.diverged:
            raise DivergedError(f"the ranks' collectives already differ; {what} was not started")
        self.calls.append(Collective(self._ranks.rank, len(self.calls), what, site))
        announced = self._ranks.gather(what)
        nemesis.pause()
        if len(set(map(without_ones, announced))) > 1:
            self.diverged = True
            listed = ", ".join(f"rank {rank}: {other}" for rank, other in enumerate(announced))
            raise DivergedError(f"the ranks' collectives differ: {listed}")


@contextmanager
def in_lockstep(lockstep: Lockstep) -> Iterator[None]:
    """Run the component's code of this rank in the block; every rank must enter it.

    What C++ starts by itself (DDP's gradients, functional collectives) is not seen, nor are
    messages. An exception of the block's code comes out when the other ranks know that this one
    makes no more collectives. Divergence, and what is raised after it, comes out as
    :attr:`Lockstep.diverged` alone.
    """
    try:
        with before_each(lockstep.come):
            yield
    except Exception:
        # Also what the component makes of it, such as that a peer has failed.
        if not lockstep.diverged:
            raise
    finally:
        # A rank that diverged has told the others already.
        if not lockstep.diverged:
            with suppress(DivergedError):
                lockstep.announce(END)


@contextmanager
def before_each(call: Before) -> Iterator[None]:
    """Call ``call`` before each collective of the block, and before a new group.

    The methods of ``ProcessGroup`` are where all of ``torch.distributed`` comes through, and
    ``_new_group_with_tag`` whatever name ``new_group`` was imported by.
    """
    with ExitStack() as patches:
        for name, position in COLLECTIVES.items():
            if hasattr(dist.ProcessGroup, name):
                method = _announcing(call, name, position)
                patches.enter_context(mock.patch.object(dist.ProcessGroup, name, method))
        making = _announcing_group(call)
        patches.enter_context(mock.patch.object(distributed_c10d, "_new_group_with_tag", making))
        yield


def _announcing(call: Before, name: str, position: int | None) -> Callable[..., Any]:
    original = getattr(dist.ProcessGroup, name)

    def announced(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        call(group, name, description(name, position, args, kwargs))
        return original(group, *args, **kwargs)

    return announced


def _announcing_group(call: Before) -> Callable[..., Any]:
    original: Any = distributed_c10d._new_group_with_tag

    def announced(*args: Any, **kwargs: Any) -> Any:
        if dist.is_initialized() and not kwargs.get("use_local_synchronization"):
            call(distributed_c10d._get_default_group(), NEW_GROUP, NEW_GROUP)
        return original(*args, **kwargs)

    return announced


def description(
    name: str, position: int | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """The operation, with what all ranks must have the same: reduction, root, dtype and shape."""
    words = [name.strip("_")]
    given = (*args, *kwargs.values())
    if name in REDUCING:
        words.append(_reduction(given))
    if name in ROOTED:
        words.append(f"root={_root(given)}")
    if position is not None and position < len(args):
        tensors = args[position]
        listed = [tensors] if isinstance(tensors, Tensor) else tensors
        words += map(_shape, listed)
    return " ".join(words)


def _reduction(given: Sequence[Any]) -> str:
    """Its name: factors of ``PREMUL_SUM`` are each rank's own."""
    # Of the overloads one takes options, and the others the operation, or a member of its enum.
    asked = (getattr(one, "reduceOp", one) for one in given)
    ops = (getattr(op, "op", op) for op in asked)
    return next((op.name for op in ops if isinstance(op, dist.ReduceOp.RedOpType)), "SUM")


def _root(given: Sequence[Any]) -> int:
    """The rank in the group."""
    asked = (getattr(one, "rootRank", one) for one in given)
    return next((root for root in asked if isinstance(root, int)), 0)


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
