"""One collective at a time: a collective that ranks disagree on is found before it starts.

Before each collective of the whole process group the ranks exchange its description, by
``Ranks.gather``. It is started only if all descriptions are equal. So ranks that disagree
cannot hang the check, abort gloo with tensors of different sizes, or pair one rank's metric with
another one's gradient.
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
from ddp_conformance.framework.failures import failures
from ddp_conformance.framework.history import Collective, without_ones
from ddp_conformance.framework.places import call_site
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.verdict import ranks_in_words
from pytest_ddp.rank.operations.operation import Issuer, Operation, PlannedTensor
from pytest_ddp.rank.operations.process import operations_of_process
from pytest_ddp.rank.operations.table import Form

END = "no more collectives"
"""The announcement of a rank that has left the component's code."""

NEW_GROUP = "new_group"
"""All ranks must call it, members or not, unless ``use_local_synchronization`` is set."""

SPLIT_GROUP = "split_group"
"""All ranks of the group must call it."""

Before: TypeAlias = Callable[[dist.ProcessGroup, str, str], None]
"""Called with the group, the operation and its description."""

After: TypeAlias = Callable[[dist.ProcessGroup], None]

Meet: TypeAlias = Callable[[str, Sequence[int]], bool]
"""Waits for the members of the group of that name; False if one of them will never call."""


class DivergedError(RuntimeError):
    """The ranks are about to make different collectives; raised on all of them."""


class Lockstep:
    """The collectives that ranks announce. Those of subgroups are announced only if ``meet``
    returns False. ``after`` is called after each collective of all ranks."""

    def __init__(
        self, ranks: Ranks, meet: Meet | None = None, after: Callable[[], None] | None = None
    ) -> None:
        self._ranks = ranks
        self._meet = meet
        self._after = after
        self.calls: list[Collective] = []
        """The announcements of this rank, in order; the last one may not have been started."""
        self.diverged = False
        """Whether some rank announced something else; no collective was started from there on."""

    def come(self, group: dist.ProcessGroup, operation: str, what: str) -> None:
        """Announce a collective of all ranks, or one of a subgroup that a member never calls."""
        if group.size() == self._ranks.world_size:
            self.announce(what, call_site())
        elif self._meet is not None:
            members = dist.get_process_group_ranks(group)
            if not self._meet(group.group_name, members):
                self.announce(f"{what} of {ranks_in_words(members)}", call_site())

    def go_on(self, group: dist.ProcessGroup) -> None:
        """Go on after a collective that was announced."""
        if self._after is not None and group.size() == self._ranks.world_size:
            self._after()

    def announce(self, what: str, site: str = "") -> None:
        """Exchange the next collective with all ranks; a :class:`DivergedError` if they differ."""
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

    Collectives that C++ starts by itself (DDP's gradients), sends and receives are not seen. An
    exception of the block's code is raised after this rank has announced the end of its
    collectives. Divergence, and exceptions after it, only set :attr:`Lockstep.diverged`.
    """
    try:
        with before_each(lockstep.come, lockstep.go_on):
            yield
    except failures():
        # After divergence the component's own exceptions as well, such as that a peer has failed.
        if not lockstep.diverged:
            raise
    finally:
        # After divergence the other ranks wait for no announcement.
        if not lockstep.diverged:
            with suppress(DivergedError):
                lockstep.announce(END)


def _do_nothing(group: dist.ProcessGroup) -> None:
    """Do nothing after a collective."""


@contextmanager
def before_each(call: Before, after: After = _do_nothing) -> Iterator[None]:
    """Call ``call`` before each collective of the block, and before a new group.

    And ``after`` when this rank has started it, or come through if it does not start it alone.

    All of ``torch.distributed`` issues by the methods of ``ProcessGroup`` or by functional
    collectives, as DTensors do, and every ``new_group``, whatever name it was imported by, calls
    ``_new_group_with_tag``.
    """
    with ExitStack() as patches:
        patches.callback(operations_of_process().subscribe(_Announcer(call, after)))
        making = _announcing_group(call, after)
        patches.enter_context(mock.patch.object(distributed_c10d, "_new_group_with_tag", making))
        if hasattr(dist.ProcessGroup, SPLIT_GROUP):
            splitting = _announcing_split(call, after)
            patches.enter_context(mock.patch.object(dist.ProcessGroup, SPLIT_GROUP, splitting))
        yield


class _Announcer:
    """Subscribes to the operations of this process."""

    def __init__(self, call: Before, after: After) -> None:
        self._call, self._after = call, after

    def before(self, operation: Operation) -> BaseException | None:
        if not _is_announced(operation):
            return None
        name, given = operation.called, operation.given
        assert given is not None
        what = description(name, operation.form, given.args, given.kwargs)
        try:
            self._call(operation.process_group, name, what)
        except BaseException as error:
            # The component's own call raises it.
            return error
        return None

    def returned(self, operation: Operation, work: Any, error: BaseException | None) -> None:
        if error is None and _is_announced(operation):
            self._after(operation.process_group)


def _is_announced(operation: Operation) -> bool:
    is_called = operation.issuer in (Issuer.PYTHON, Issuer.FUNCTIONAL)
    return is_called and not operation.form.is_message


def _announcing_group(call: Before, after: After) -> Callable[..., Any]:
    original: Any = distributed_c10d._new_group_with_tag

    def announced(*args: Any, **kwargs: Any) -> Any:
        if not dist.is_initialized() or kwargs.get("use_local_synchronization"):
            return original(*args, **kwargs)
        group = distributed_c10d._get_default_group()
        call(group, NEW_GROUP, NEW_GROUP)
        made = original(*args, **kwargs)
        after(group)
        return made

    return announced


def _announcing_split(call: Before, after: After) -> Callable[..., Any]:
    original: Any = dist.ProcessGroup.split_group

    def announced(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        call(group, SPLIT_GROUP, SPLIT_GROUP)
        made = original(group, *args, **kwargs)
        after(group)
        return made

    return announced


def description(name: str, form: Form, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The operation, with what must be equal on all ranks: reduction, root, dtype and shape."""
    words = [name.strip("_")]
    given = (*args, *kwargs.values())
    if form.reduces:
        words.append(_reduction(given))
    if form.rooted:
        words.append(f"root={_root(given)}")
    if form.shape is not None and form.shape < len(args):
        tensors = args[form.shape]
        listed = tensors if isinstance(tensors, list | tuple) else [tensors]
        words += map(_shape, listed)
    return " ".join(words)


def _reduction(given: Sequence[Any]) -> str:
    """The name of a reduction, without the factor of ``PREMUL_SUM``, which may differ between
    ranks.
    """
    # One overload takes options, the others the operation or a member of its enum.
    arguments = (getattr(one, "reduceOp", one) for one in given)
    ops = (getattr(op, "op", op) for op in arguments)
    return next((op.name for op in ops if isinstance(op, dist.ReduceOp.RedOpType)), "SUM")


def _root(given: Sequence[Any]) -> int:
    """The rank in the group."""
    roots = (getattr(one, "rootRank", one) for one in given)
    return next((root for root in roots if isinstance(root, int)), 0)


def _shape(tensor: Tensor | PlannedTensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
