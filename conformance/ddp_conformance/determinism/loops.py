"""Run a training loop as often as its checks need, and record what it reports."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from ddp_conformance.determinism.hands import Change, Held, followed, reading_followed
from ddp_conformance.determinism.history import (
    DeviceMemory,
    HeldModule,
    LoopLoss,
    LoopParameters,
    LoopRaised,
    LoopStep,
    RebuildsBuckets,
    Sketch,
)
from ddp_conformance.determinism.subjects import Leg, TrainLoop
from ddp_conformance.framework import nemesis
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.digests import digest_of
from ddp_conformance.framework.failures import failures, release_locals
from ddp_conformance.framework.history import Record
from ddp_conformance.framework.ranks import Ranks, gpu_of
from ddp_conformance.framework.recording import describe
from pytest_ddp.rank.equality import is_dtensor

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK")
"""Environment variables by which a process learns of its peers."""


class Notes:
    """The watch of one run: makes a record of each report of the loop."""

    def __init__(self, rank: int, run: str) -> None:
        self.records: list[Record] = []
        self._rank = rank
        self._run = run
        self._model: nn.Module | None = None
        self._held: dict[str, nn.Module] = {}
        self._before: dict[str, Any] = {}
        self._dataset: Any = None
        self._read: dict[str, Held] = {}
        self.changes: list[Change] = []
        self.block = ExitStack()
        """What is followed until the end of the run."""

    def wrapped(self, ddp: DistributedDataParallel) -> None:
        """A model was wrapped, which the loop does not report by itself."""
        if ddp.static_graph or not ddp.find_unused_parameters:
            self.records.append(RebuildsBuckets(self._rank, self._run))

    def begin(self, model: nn.Module, dataset: Any = None) -> None:
        self.records.append(LoopParameters(self._rank, self._run, "begin", sketches_of(model)))
        self._model = model
        self._dataset, self._held = dataset, dict(modules_in(dataset))
        self._before = {path: _look(module) for path, module in self._held.items()}
        if self._held:
            self.block.enter_context(reading_followed(dataset, self._has_read))

    def _has_read(self) -> None:
        """A sample was read, so that the data set has its modules in the modes that it needs."""
        for path, module in self._held.items() if not self._read else ():
            self._read[path] = Held(module, self._dataset, self.changes)

    def step(self, epoch: int, ids: Sequence[int]) -> None:
        self._has_read()  # by workers at the latest, where this process does not see it
        draws = (
            ("python", random.random()),
            ("numpy", float(np.random.random())),
            ("torch", float(torch.rand(1))),
        )
        self.records.append(LoopStep(self._rank, self._run, epoch, tuple(ids), draws))

    def epoch(self, epoch: int, loss: float) -> None:
        self.records.append(LoopLoss(self._rank, self._run, epoch, loss))

    def end(self, model: nn.Module) -> None:
        self.records.append(LoopParameters(self._rank, self._run, "end", sketches_of(model)))
        for path, module in self._held.items():
            changed = _look(module) != self._before[path]
            trained = self._model is not None and _share(module, self._model)
            altered = self._read[path].altered() if path in self._read else ""
            self.records.append(HeldModule(self._rank, path, trained, changed, altered))


class KeepsTheEnd(Notes):
    """A watch that keeps the final parameters as they are."""

    def __init__(self, rank: int, run: str) -> None:
        super().__init__(rank, run)
        self.tensors: dict[str, Tensor] = {}

    def end(self, model: nn.Module) -> None:
        super().end(model)
        named = [*model.named_parameters(), *model.named_buffers()]
        self.tensors = {name: whole_tensor(tensor).double().clone() for name, tensor in named}


def run_leg(subject: TrainLoop, case: Case, run: str, leg: Leg, turn: int) -> list[Record]:
    """Call the loop once, with random states that differ from those of other calls and ranks."""
    notes = Notes(case.rank, run)
    _call(subject, case, leg, turn, notes)
    return notes.records


def try_leg(
    subject: TrainLoop, case: Case, run: str, leg: Leg, turn: int, tell: Callable[[bool], None]
) -> list[Record]:
    """Call :func:`run_leg`, which the loop may refuse by an exception or an
    exit code.

    Args:
        tell: called with whether it has raised; in the handler of the exception, so that a hang of
            peers that go on is told with it.
    """
    notes = Notes(case.rank, run)
    try:
        _call(subject, case, leg, turn, notes)
    except failures(SystemExit) as error:
        if isinstance(error, SystemExit) and not error.code:
            raise
        notes.records.append(LoopRaised(case.rank, run, describe(error)))
        release_locals(error)
        tell(True)
    else:
        tell(False)
    return notes.records


def final_parameters(subject: TrainLoop, case: Case, leg: Leg, turn: int) -> dict[str, Tensor]:
    """The parameters of one process in float64, and its buffers, by name; empty if none are
    reported.
    """
    notes = KeepsTheEnd(case.rank, "rounding")
    _call(subject, case, leg, turn, notes)
    return notes.tensors


def _call(subject: TrainLoop, case: Case, leg: Leg, turn: int, notes: Notes) -> None:
    nemesis.scatter(f"turn {turn} of a loop", case.rank)
    with notes.block, wrapping_followed(notes), followed(notes.changes):
        subject.make(case, leg, notes)


@contextmanager
def wrapping_followed(notes: Notes) -> Iterator[None]:
    """Note every DDP that is made in the block; the loop may report the bare model alone."""
    ddp: Any = DistributedDataParallel
    original = ddp.__init__

    @wraps(original)
    def wrap(made: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        original(made, *args, **kwargs)
        notes.wrapped(made)

    ddp.__init__ = wrap
    try:
        yield
    finally:
        ddp.__init__ = original


@contextmanager
def alone() -> Iterator[None]:
    """Hide the process group and the launcher's variables from the code in the block."""
    group = dist.group.WORLD
    hidden = {name: os.environ.pop(name) for name in LAUNCHER if name in os.environ}
    distributed_c10d._update_default_pg(None)
    try:
        yield
    finally:
        distributed_c10d._update_default_pg(group)
        os.environ.update(hidden)


def checkpoint_in(case: Case, run: str) -> Path:
    """The path of the checkpoint from which a run is resumed, the same on all ranks."""
    return case.directory / f"{run.replace(' ', '-')}.ckpt"


def sketches_of(model: nn.Module) -> tuple[Sketch, ...]:
    """Parameters and buffers, by name; a collective of all ranks if they are sharded."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return tuple(sketch(name, whole_tensor(tensor)) for name, tensor in sorted(named))


def sketch(name: str, tensor: Tensor) -> Sketch:
    """One CPU tensor."""
    values = tensor.double().reshape(-1)
    pattern = torch.cos(torch.arange(values.numel(), dtype=torch.float64))
    return Sketch(name, digest_of(tensor), values.norm().item(), (values @ pattern).item())


def whole_tensor(tensor: Tensor) -> Tensor:
    """All shards, on the CPU."""
    whole = tensor.full_tensor() if is_dtensor(tensor) else tensor
    return whole.detach().cpu()


def modules_in(
    holder: Any, path: str = "dataset", depth: int = 4
) -> Iterator[tuple[str, nn.Module]]:
    """The modules that a data set holds: in its attributes, containers and inner data sets."""
    if isinstance(holder, nn.Module):
        yield path, holder
    elif depth > 0:
        for name, value in _children(holder):
            yield from modules_in(value, f"{path}.{name}", depth - 1)


def _children(holder: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(holder, Mapping):
        yield from ((str(key), value) for key, value in holder.items())
    elif isinstance(holder, list | tuple):
        yield from ((str(place), value) for place, value in enumerate(holder))
    elif not isinstance(holder, type | Tensor):
        yield from vars(holder).items() if hasattr(holder, "__dict__") else ()


def _look(module: nn.Module) -> Any:
    devices = {str(tensor.device) for tensor in module.state_dict().values()}
    return sorted(devices), sketches_of(module)


def _share(module: nn.Module, model: nn.Module) -> bool:
    """Whether two modules share an object. Both are alive, so that equal ids are equal objects."""
    own = {id(part) for part in (*module.modules(), *module.parameters())}
    return any(id(part) in own for part in (*model.modules(), *model.parameters()))


def own_gpu(ranks: Ranks) -> int:
    """Number of this rank's GPU; the local rank, as under torchrun, if the test has leased none."""
    gpu = gpu_of(ranks)
    return int(os.environ.get("LOCAL_RANK", ranks.rank)) if gpu is None else gpu.index


def memory_in_use() -> list[int]:
    """Bytes that this process has allocated on each GPU; torch measures peaks from now on."""
    devices = range(torch.cuda.device_count())
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for device in devices:
            torch.cuda.reset_peak_memory_stats(device)
    return [torch.cuda.memory_allocated(device) for device in devices]


def device_memory(ranks: Ranks, before: list[int]) -> Iterator[DeviceMemory]:
    """What this process has allocated through torch on each GPU, since :func:`memory_in_use`."""
    own = own_gpu(ranks)
    for device, in_use in enumerate(before):
        allocated = torch.cuda.max_memory_allocated(device) - in_use
        yield DeviceMemory(ranks.rank, own, device, allocated)
