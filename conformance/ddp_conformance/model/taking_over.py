"""What one process takes over of the ranks' training, put together from all of them.

A rank may have parameters that another one lacks, as with experts or stages of a pipeline on
ranks. What several ranks have is taken from the first of them, what one has from that one.
"""

from __future__ import annotations

import copy
import io
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


@dataclass(slots=True)
class Snapshot:
    """What a rank had before a step."""

    parameters: dict[str, Tensor] = field(default_factory=dict)
    states: dict[Owned, Any] = field(default_factory=dict)
    """Of the optimizers, for each parameter; empty where there is none yet."""


@dataclass(slots=True)
class Followed:
    """What a rank has kept of its training for the one process."""

    initial: dict[str, Tensor]
    seen: list[Record]
    """All that this rank has recorded."""
    before: list[Snapshot] = field(default_factory=list)
    """Of the steps from :data:`~ddp_conformance.model.steps.OWN_STEPS` on."""


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


def lent_of(names: Iterable[str], rank: int, world_size: int) -> set[str] | None:
    """The parameters that no rank before this one has; None if rank 0 has all. A collective."""
    by_rank: list[Any] = [None] * world_size
    dist.all_gather_object(by_rank, list(names))
    if {*by_rank[0]}.issuperset(name for found in by_rank for name in found):
        return None
    return {*by_rank[rank]}.difference(*by_rank[:rank])


def snapshot_of(model: nn.Module, optimizers: Sequence[Optimizer]) -> Snapshot:
    """A copy of the parameters and of the optimizers' states; collectives if some are sharded.

    Raises whatever an optimizer raises that does not give its state, as one that ZeRO shards.
    """
    names = {id(parameter): name for name, parameter in named(model)}
    found = Snapshot({name: full(p).clone() for name, p in named(model)})
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
    """On this rank's device what was on that of another one."""
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
    return Followed(among(kept.initial), kept.seen, before)


def _union(kept: Sequence[Followed]) -> Followed:
    initial = {name: tensor for one in kept for name, tensor in one.initial.items()}
    steps = min(len(one.before) for one in kept if one.initial)
    seen = [record for one in kept for record in one.seen]
    found = Followed(initial, seen, [Snapshot() for _ in range(steps)])
    for one in kept:
        for whole, part in zip(found.before, one.before, strict=False):
            whole.parameters.update(part.parameters)
            whole.states.update(part.states)
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

    def take_over(self, snapshot: Snapshot, optimizers: Sequence[Optimizer]) -> bool:
        """Take over the ranks' state; False if there are other optimizers here."""
        self.begin_from(snapshot.parameters)
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
