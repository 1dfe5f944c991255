"""WRT-05: who is let through by a guard, in every stage of a process's life."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.failures import failures
from ddp_conformance.framework.history import Record
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import cases_of, describe, judge_each, record
from ddp_conformance.framework.registry import Check, Guarantee
from ddp_conformance.framework.verdict import Violation
from ddp_conformance.launched.start.apart import Part
from ddp_conformance.launched.start.forks import (
    become_rank,
    forget_rank,
    in_child,
    in_fresh_processes,
)
from ddp_conformance.lockstep.machines import Place, environment_of, several_machines
from ddp_conformance.writing.history import Guarded
from ddp_conformance.writing.judge_publishing import judge_guard
from ddp_conformance.writing.subjects import Guard

Question: TypeAlias = Callable[[Callable[[], Any]], Any]
"""Takes what loads the factory."""

Ask: TypeAlias = Callable[[Sequence[Question]], list[Any]]
"""Has each question answered in a process of its own."""

WRT_05 = Guarantee(
    "WRT-05",
    "A guard MUST let the same one rank through, of all or of each machine as it declares, from "
    "the start of the process, before there is a process group, and in forked children.",
)


def observe_guard(subject: Guard, case: Case) -> Iterator[Record]:
    """The guard in every stage of a process's life, on one machine and on several."""
    guard = subject.make(case)
    yield replace(ask(guard, case), stage="in the process group")
    yield replace(in_child(lambda: ask(guard, case)), stage="in a forked child")
    cases, elsewhere = askers(subject, case)
    # Each of these imports the factory's module, so there is one for a launcher; forks are cheap.
    for launcher in subject.launchers:
        starts = [Start(one, launcher, places_of(one)[-1]) for one in cases]
        answers = elsewhere([functools.partial(ask_at_start, start) for start in starts])
        for start, answer in zip(starts, answers, strict=True):
            yield start.described(answer, "before the process group")
    forks = [starts_of(subject, one) for one in cases]
    questions = [functools.partial(ask_after_forks, *one) for one in zip(cases, forks, strict=True)]
    children = elsewhere(questions)
    for starts, answers in zip(forks, children, strict=True):
        for start, answer in zip(starts, answers, strict=True):
            yield start.described(answer, "made before the fork")


@dataclass(frozen=True, slots=True)
class Start:
    """A launcher starts a rank."""

    case: Case
    launcher: str
    place: Place

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the launcher sets."""
        return environment_of(self.launcher, self.place)

    def described(self, answer: Guarded, stage: str) -> Guarded:
        """The answer, with the circumstances in words."""
        machines = f" on {self.place.machines} machines" if self.place.machines > 1 else ""
        how = f"{stage}, under {self.launcher}{machines}"
        return replace(answer, stage=how, machine=self.place.machine)


def starts_of(subject: Guard, case: Case) -> list[Start]:
    """Each launcher at each place."""
    places = places_of(case)
    return [Start(case, launcher, place) for launcher in subject.launchers for place in places]


def places_of(case: Case) -> tuple[Place, ...]:
    """This rank's place on one machine, and on several where the ranks can be shared out."""
    numbers = sorted({1, several_machines(case.world_size)})
    return tuple(Place(case.rank, case.world_size, machines) for machines in numbers)


def askers(subject: Guard, case: Case) -> tuple[list[Case], Ask]:
    """The ranks that this one calls the guard for, and how it does so in new processes.

    They import the factory's module by themselves: in a rank's own process modules know the rank
    already. Rank 0 does it for all, so that one of them starts the server. A guard that no other
    process can make is called in forks of each rank.
    """
    part = Part.of(subject)
    if part is None:
        return [case], lambda questions: [
            in_child(functools.partial(question, lambda: subject.make)) for question in questions
        ]
    load = functools.partial(factory_of, part)
    everybody = [replace(case, rank=rank) for rank in range(case.world_size)]
    return everybody if case.rank == 0 else [], lambda questions: in_fresh_processes(
        [functools.partial(question, load) for question in questions]
    )


def factory_of(part: Part) -> Any:
    """The factory, in a process that has to import it."""
    return part.make().make


def ask(guard: Any, case: Case) -> Guarded:
    """Whether the guard lets this process act, or what it raises."""
    acted: list[bool] = []
    try:
        guard(lambda: acted.append(True))
    except failures() as error:
        return Guarded(case.rank, "", False, describe(error))
    return Guarded(case.rank, "", bool(acted))


def ask_at_start(start: Start, load: Callable[[], Any]) -> Guarded:
    """Ask in a process that a launcher has just started."""
    forget_rank()
    become_rank(start.environment)
    try:
        guard = load()(start.case)
    except failures() as error:
        return Guarded(start.case.rank, "", False, describe(error))
    return ask(guard, start.case)


def ask_after_forks(case: Case, starts: Sequence[Start], load: Callable[[], Any]) -> list[Guarded]:
    """Ask with a guard that the launcher's own process has made, before its children had ranks."""
    forget_rank()
    try:
        guard = load()(case)
    except failures() as error:
        return [Guarded(case.rank, "", False, describe(error))] * len(starts)

    def as_rank(start: Start) -> Guarded:
        become_rank(start.environment)
        return ask(guard, case)

    return [in_child(functools.partial(as_rank, start)) for start in starts]


def find_wrong_guard(subject: Guard, ranks: Ranks) -> tuple[Violation, ...]:
    """Check WRT-05."""
    runs = record(subject, ranks, cases_of(ranks, (1,)), observe_guard)
    each_machine = "once_per_node" in subject.traits
    return judge_each(runs, lambda run: judge_guard(run.history, each_machine=each_machine))


CHECKS = (Check(WRT_05, (Guard,), find_wrong_guard),)
