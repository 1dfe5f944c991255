"""What one process takes over of the ranks' training, put together from all of them.

A rank may have parameters that another one lacks, as with experts or stages of a pipeline on
ranks. What several ranks have is taken from the first of them, what one has from that one.
"""

from __future__ import annotations

import copy
import io
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ddp_conformance.framework.history import Record
from ddp_conformance.launched.process.saving import bare_name

Owned: TypeAlias = tuple[str, int]
"""A parameter's name, and how many of the optimizers that stepped before own it too."""


Call: TypeAlias = tuple[int, int]
"""A step's number, from 1, and how many optimizers were called in it before."""


@dataclass(slots=True)
class Snapshot:
    """What a rank had before a step."""

    parameters: dict[str, Tensor] = field(default_factory=dict)
    states: dict[Owned, Any] = field(default_factory=dict)
    """The states of the optimizers, for each parameter; empty where there is none yet."""


@dataclass(slots=True)
class Followed:
    """What a rank has kept of its training for the one process."""

    seen: list[Record]
    """All that this rank has recorded."""
    before: list[Snapshot] = field(default_factory=list)
    """Snapshots before the first steps; before all, if the optimizers give their states."""
    after: list[dict[str, Tensor]] = field(default_factory=list)
    """The parameters after each step."""
    gradients: dict[Call, dict[str, Tensor | None]] = field(default_factory=dict)
    """The gradients with which an optimizer was called."""
    owned: dict[Call, frozenset[str]] = field(default_factory=dict)
    """The names of the parameters of the optimizer that was called."""

    def call_like(self, call: Call, owned: frozenset[str], given: Collection[Call]) -> Call:
        """The call of this step with the same parameters, or else the one in the same place.

        Hooks of the backward pass may call one process's optimizers in another order.
        """
        same = [
            one
            for one, names in self.owned.items()
            if one[0] == call[0] and names == owned and one not in given
        ]
        return call if call in same or not same else same[0]


def named(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters by the names of the bare model."""
    yield from ((bare_name(name), tensor) for name, tensor in model.named_parameters())


def tied(model: nn.Module) -> list[tuple[str, ...]]:
    """The names of each parameter that has several."""
    names: defaultdict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(bare_name(name))
    return [tuple(found) for found in names.values() if len(found) > 1]


def full(tensor: Tensor) -> Tensor:
    """Put together from all ranks, if it is sharded; a collective then."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def dense(tensor: Tensor) -> Tensor:
    """With all elements, as gradients of a sparse embedding are not."""
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of each parameter, put together; collectives if some are sharded."""
    return {name: full(parameter).clone() for name, parameter in named(model)}


def lent_of(kept: Followed, names: Iterable[str], rank: int, world_size: int) -> set[str] | None:
    """The parameters that are taken from this rank; None if all are from rank 0. A collective.

    Each is from the first rank whose optimizers have a state of it, or else that has it: ranks may
    share out which of them updates which parameters, and then send these to the others.
    """
    stated = {name for one in kept.before for (name, _), state in one.states.items() if state}
    by_rank: list[Any] = [None] * world_size
    dist.all_gather_object(by_rank, {name: name in stated for name in names})
    lenders: dict[str, int] = {}
    for wanted in (True, False):
        for lender, found in enumerate(by_rank):
            for name, has_state in found.items():
                if has_state or not wanted:
                    lenders.setdefault(name, lender)
    if not any(lenders.values()):
        return None
    return {name for name, lender in lenders.items() if lender == rank}


def snapshot_of(
    model: nn.Module, names: Mapping[int, str], optimizers: Sequence[Optimizer]
) -> Snapshot:
    """A copy of the parameters and of the optimizers' states; collectives if some are sharded.

    The names are by the ids of the parameters that optimizers have: ``fully_shard`` puts others in
    their place for as long as the model is gathered.

    Raises whatever an optimizer raises that does not give its state, as one that ZeRO shards.
    """
    found = Snapshot(parameters_of(model))
    for owned, parameter, optimizer in _owned(optimizers, names):
        found.states[owned] = _in_full(optimizer.state.get(parameter, {}))
    for optimizer in optimizers:
        optimizer.state_dict()
    return found


def _owned(
    optimizers: Sequence[Optimizer], names: Mapping[int, str]
) -> Iterator[tuple[Owned, Tensor, Optimizer]]:
    seen: Counter[str] = Counter()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = names.get(id(parameter))
                if name is not None:
                    yield (name, seen[name]), parameter, optimizer
                    seen[name] += 1


def _in_full(state: Any) -> Any:
    """A copy of an optimizer's state, in which nothing is sharded."""
    if isinstance(state, Tensor):
        return full(state).clone()
    if isinstance(state, dict):
        return {key: _in_full(value) for key, value in state.items()}
    return [*map(_in_full, state)] if isinstance(state, list) else copy.deepcopy(state)


def gathered(own: Followed, lent: Collection[str], rank: int, world_size: int) -> Followed:
    """What all ranks have kept, on rank 0; a collective.

    Args:
        own: what this rank has kept.
        lent: the parameters that are taken from this rank.
        rank: this one.
        world_size: how many there are.
    """
    given = io.BytesIO()
    torch.save(_only(own, lent), given)
    parcels: list[Any] | None = [None] * world_size if rank == 0 else None
    dist.gather_object(given.getvalue(), parcels)
    if parcels is None:
        return own
    return _union([torch.load(io.BytesIO(p), _here, weights_only=False) for p in parcels])


def _here(storage: Any, location: str) -> Any:
    """Put on this rank's device what was on that of another one."""
    return storage if location == "cpu" else storage.cuda()


def _only(kept: Followed, names: Collection[str]) -> Followed:
    """What is known of these parameters."""

    def among(content: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in content.items() if name in names}

    before = [
        Snapshot(
            among(snapshot.parameters),
            {owned: state for owned, state in snapshot.states.items() if owned[0] in names},
        )
        for snapshot in kept.before
    ]
    gradients = {call: among(found) for call, found in kept.gradients.items()}
    owned = {call: own & {*names} for call, own in kept.owned.items()}
    return Followed(kept.seen, before, [*map(among, kept.after)], gradients, owned)


def _union(kept: Sequence[Followed]) -> Followed:
    """A rank without any parameter has nothing to say of how far the others came."""
    kept = [one for one in kept if one.before and one.before[0].parameters] or kept
    found = Followed([record for one in kept for record in one.seen])
    found.before += [Snapshot() for _ in range(min(len(one.before) for one in kept))]
    found.after += [{} for _ in range(min(len(one.after) for one in kept))]
    for one in kept:
        for whole, part in zip(found.before, one.before, strict=False):
            whole.parameters.update(part.parameters)
            whole.states.update(part.states)
        for content, own in zip(found.after, one.after, strict=False):
            content.update(own)
        for call, gradients in one.gradients.items():
            found.gradients.setdefault(call, {}).update(gradients)
            found.owned[call] = found.owned.get(call, frozenset()) | one.owned[call]
    return found


class OneProcess:
    """The model of one process, by all the names that its parameters have."""

    def __init__(self, model: nn.Module) -> None:
        self._named = [*named(model)]
        self._aliases = {name: names for names in tied(model) for name in names}

    def begin_from(self, content: Mapping[str, Tensor]) -> None:
        """Take over parameters; those that no rank has stay as they are."""
        with torch.no_grad():
            for name, parameter in self._named:
                known = self._known(name, content)
                if known is not None:
                    parameter.copy_(content[known])

    def _known(self, name: str, content: Collection[str]) -> str | None:
        return next((one for one in self._aliases.get(name, (name,)) if one in content), None)

    def take_gradients(
        self, optimizer: Optimizer, given: Mapping[str, Tensor | None]
    ) -> str | None:
        """Give an optimizer the ranks' gradients; returns why it cannot have them, if so."""
        names = {id(parameter): name for name, parameter in self._named}
        for _, parameter, _ in _owned([optimizer], names):
            known = self._known(names[id(parameter)], given)
            if known is None or not parameter.requires_grad:
                continue
            gradient = given[known]
            if gradient is None:
                parameter.grad = None
            elif (gradient.shape, gradient.dtype) != (parameter.shape, parameter.dtype):
                return "has gradients of another shape or dtype than in one process"
            else:
                parameter.grad = gradient.to(parameter.device, copy=True)
        return None

    def differing(
        self, before: Mapping[str, Tensor], after: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, float, float, float]]:
        """The parameters that differ from the ranks' by more than their unit."""
        for name, parameter in self._named:
            known = self._known(name, after)
            if known is not None and known in before:
                found = farthest_beyond_unit(after[known], parameter.detach(), before[known])
                if found is not None:
                    yield (name, *found)

    def take_over(self, snapshot: Snapshot, optimizers: Sequence[Optimizer]) -> bool:
        """Take over the ranks' state; False if there are other optimizers here."""
        self.begin_from(snapshot.parameters)
        if not snapshot.states:  # a scaler has skipped the ranks' steps, and not the one here
            for optimizer in optimizers:
                optimizer.state.clear()
            return True
        names = {id(parameter): name for name, parameter in self._named}
        for (name, place), parameter, optimizer in _owned(optimizers, names):
            known = {one: (one, place) for one, at in snapshot.states if at == place}
            alias = self._known(name, known)
            if alias is None:
                return False
            state = snapshot.states[known[alias]]
            if state or parameter in optimizer.state:
                optimizer.state[parameter] = copy.deepcopy(state)
        return True


def farthest_beyond_unit(
    found: Tensor, wanted: Tensor, before: Tensor
) -> tuple[float, float, float] | None:
    """The element that is farthest off, of those that are by more than their unit.

    The unit is that in the last place of what is wanted, or of the update, whichever is larger:
    of the same numbers, other ways to add a small update may make the one or the other.

    Args:
        found: the values to judge.
        wanted: the right ones, of the same shape and dtype.
        before: the values before the update.

    Returns:
        its value, the right one and the unit; None if there is none.
    """
    if found.shape != wanted.shape or torch.equal(found, wanted):
        return None
    value, right, old = (tensor.reshape(-1).double() for tensor in (found, wanted, before))
    reach = torch.maximum(right.abs(), (right - old).abs())
    info = torch.finfo(wanted.dtype)
    unit = torch.ldexp(torch.full_like(reach, info.eps / 2), torch.frexp(reach).exponent)
    unit = unit.masked_fill(reach == 0, 0.0).clamp_min(info.tiny * info.eps)
    same = (value == right) | (value.isnan() & right.isnan())
    far = (value - right).abs().nan_to_num(nan=math.inf).masked_fill(same, 0.0)
    far = far.masked_fill(far <= unit, 0.0)
    place = int(far.argmax())
    if not far[place]:
        return None
    return float(value[place]), float(right[place]), float(unit[place])
