"""What launched ranks do for a TrainStep subject: train, and then rank 0 alone, as one process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor
from torch.optim import Optimizer

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.failures import failures
from ddp_conformance.framework.history import History
from ddp_conformance.launched.history import Happened
from ddp_conformance.launched.journal import Journal
from ddp_conformance.launched.order import Order
from ddp_conformance.launched.rank_devices import join, leave
from ddp_conformance.model.history import (
    Decided,
    OneProcessEnds,
    Statistics,
    Tied,
    Updated,
    UpdateUnknown,
)
from ddp_conformance.model.judge import judge_gradients
from ddp_conformance.model.judge_decisions import judge_decisions
from ddp_conformance.model.judge_statistics import judge_statistics
from ddp_conformance.model.judge_updates import judge_updates
from ddp_conformance.model.kept_records import KeptRecords
from ddp_conformance.model.rounding_limits import is_repeated, measured
from ddp_conformance.model.steps import StepObserver, around_backward, demand_no_fsdp1, keep
from ddp_conformance.model.subjects import TOLERANCE, Trainee
from ddp_conformance.model.taking_over import (
    Call,
    Followed,
    OneProcess,
    gathered,
    lent_of,
    named,
    parameters_of,
    tied,
)
from pytest_ddp.extensions.worlds.parity import ROUNDING_RUNS

Made: TypeAlias = list[dict[str, Tensor]]
"""Parameters after each step."""


def take_steps(order: Order, journal: Journal) -> None:
    """Train on all ranks, then on rank 0 alone, from the same parameters before each step."""
    make, (size, steps, *measures) = order.work.entry.load(), order.work.argv
    case = Case(int(size), order.rank, order.world_size, Path(order.directory))
    join(order.device)
    trainee = Trainee(*make(case))
    demand_no_fsdp1(trainee.model)
    keep(trainee)
    records = KeptRecords(journal)
    followed = Followed(records.seen)
    names = [name for name, _ in named(trainee.model)]

    def keep_gradients(
        call: Call, _: Optimizer, found: dict[str, Tensor | None], owned: frozenset[str]
    ) -> None:
        copies = {name: None if g is None else g.clone() for name, g in found.items()}
        followed.gradients[call], followed.owned[call] = copies, owned

    observer = StepObserver(trainee.model, order.rank, records, keep_gradients)
    observer.run(trainee, int(steps), followed)
    observer.close()
    lent = lent_of(followed, names, order.rank, order.world_size)
    if lent is not None:
        followed = gathered(followed, lent, order.rank, order.world_size)
    leave()
    if order.rank == 0:
        alone = Alone(make, replace(case, world_size=1), followed, journal)
        alone.run()
        if measures:
            alone.measure()
    journal.add(Happened(order.rank, "returned"))


class Alone:
    """One process with all samples.

    Before each step it takes over the ranks' parameters and states, so that rounding errors of
    earlier steps do not count, and its optimizers step with the ranks' gradients. What its
    optimizers' groups say stays its own.
    """

    def __init__(
        self, make: Callable[[Case], Any], case: Case, followed: Followed, journal: Journal
    ) -> None:
        self._make, self._case, self._followed = make, case, followed
        self._journal = journal
        self._plain = KeptRecords(journal)
        self._made: Made = []

    def run(self) -> None:
        """Record what the one process steps with, and what it makes of the ranks' gradients."""
        self._made = self._run(self._plain, contextlib.nullcontext())

    def measure(self) -> None:
        """Record how far rounding moves the one process, if ranks are farther from it than is
        allowed."""
        if not exceeded([*self._followed.seen, *self._plain.seen]):
            return
        # Late, as few runs need it.
        from pytest_ddp.extensions.worlds.ranks.rounding import MonteCarloRounding

        seen, made = [], []
        ways: list[AbstractContextManager[object]] = [contextlib.nullcontext()]
        ways += [MonteCarloRounding(number + 1) for number in range(ROUNDING_RUNS)]
        for rounding in ways:
            records = KeptRecords()
            try:
                made.append(self._run(records, rounding))
            except failures():  # from the subject's code, such as a compiled model's
                return
            seen.append(records.seen)
        if not is_repeated(seen.pop(0), self._plain.seen):
            return  # it draws random numbers, whose differences are no limit
        made.pop(0)
        for rounded in measured(self._plain.seen, seen, _distances(self._made, made)):
            self._journal.add(rounded)

    def _run(self, records: KeptRecords, rounding: AbstractContextManager[object]) -> Made:
        trainee = Trainee(*self._make(self._case))
        one = OneProcess(trainee.model)
        for names in tied(trainee.model):
            records.add(Tied(0, names))
        taken: dict[Call, Call] = {}
        """The ranks' calls whose gradients this process had in its own."""

        def take_gradients(
            call: Call, optimizer: Optimizer, _: object, owned: frozenset[str]
        ) -> None:
            if call not in taken:
                taken[call] = self._followed.call_like(call, owned, taken.values())
            gradients = self._followed.gradients.get(taken[call])
            if gradients is not None:
                why = one.take_gradients(optimizer, gradients)
                if why is not None:
                    records.add(UpdateUnknown(0, call[0], why))

        observer = StepObserver(trainee.model, 0, records, take_gradients, alone=True)
        end = around_backward(observer.measure)
        made: Made = []
        for number, snapshot in enumerate(self._followed.before):
            if not one.take_over(snapshot, observer.optimizers):
                records.add(OneProcessEnds(0, number + 1))
                break
            with rounding:
                observer.step(trainee, number)
            made.append(parameters_of(trainee.model))
            calls = {call for call in self._followed.gradients if call[0] == number + 1}
            if calls and calls.issubset(taken.values()):
                after = self._followed.after[number]
                differing = tuple(one.differing(snapshot.parameters, after))
                records.add(Updated(0, number + 1, differing))
        observer.close()
        end()
        return made


def _distances(plain: Made, further: Iterable[Made]) -> Iterator[tuple[int, str, float]]:
    for run in further:
        for step, (own, right) in enumerate(zip(run, plain, strict=False), 1):
            for name, tensor in own.items():
                far = (tensor.double() - right[name].double()).abs()
                finite = far[far.isfinite()]
                if finite.numel():
                    yield step, name, float(finite.max())


def exceeded(history: History) -> bool:
    """Whether something is farther from one process than the default tolerance allows."""
    decided = any(isinstance(seen, Decided) and seen.decisions for seen in history)
    kept = any(isinstance(seen, Statistics) and seen.values for seen in history)
    return bool(
        judge_gradients(history, TOLERANCE)
        or (decided and judge_decisions(history, TOLERANCE))
        or (kept and judge_statistics(history, TOLERANCE))
        or judge_updates(history)
    )
