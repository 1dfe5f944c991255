"""Collectives one at a time: what one rank would wait for in vain is seen, not waited for.

Before each collective of the whole process group the ranks tell one another, by
``Ranks.gather``, which one comes. It is started only if all of them name the same. So a
component whose ranks disagree cannot hang the check, nor abort gloo with tensors of
different sizes, nor pair one rank's metric with another one's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch import Tensor

from ddp_conformance.frame import nemesis
from ddp_conformance.frame.history import Collective, without_ones
from ddp_conformance.frame.places import call_site
from ddp_conformance.frame.ranks import Ranks

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
}
"""Methods of ``ProcessGroup``, and which argument must have one dtype and shape on all ranks."""


class DivergedError(RuntimeError):
    """The ranks are about to make different collectives; raised on all of them."""


class Lockstep:
    """What the ranks announced."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.calls: list[Collective] = []
        """What this rank announced, in order; the last one may never have been started."""
        self.diverged = False
        """Some rank announced something else; nothing was started from there on."""

    @property
    def world_size(self) -> int:
        """Number of ranks, and of members of the groups whose collectives are announced."""
        return self._ranks.world_size

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

    The methods of ``ProcessGroup`` are where all of ``torch.distributed`` comes through;
    what C++ starts by itself (DDP's gradients, functional collectives) is not seen, nor
    are messages and groups that leave out ranks. An exception of the block's code comes
    out when the other ranks know that this one makes no more collectives. Divergence, and
    what is raised after it, comes out as :attr:`Lockstep.diverged` alone.
    """
    try:
        with ExitStack() as patches:
            for name, position in COLLECTIVES.items():
                if hasattr(dist.ProcessGroup, name):
                    method = _announcing(lockstep, name, position)
                    patches.enter_context(mock.patch.object(dist.ProcessGroup, name, method))
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


def _announcing(lockstep: Lockstep, name: str, position: int | None) -> Callable[..., Any]:
    original = getattr(dist.ProcessGroup, name)

    def announced(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        if group.size() == lockstep.world_size:
            lockstep.announce(description(name, position, args), call_site())
        return original(group, *args, **kwargs)

    return announced


def description(name: str, position: int | None, args: Sequence[Any]) -> str:
    """The operation, with dtype and shape where all ranks must have the same."""
    words = name.strip("_")
    if position is None or position >= len(args):
        return words
    tensors = args[position]
    listed = [tensors] if isinstance(tensors, Tensor) else tensors
    return " ".join([words, *(_shape(tensor) for tensor in listed)])


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
