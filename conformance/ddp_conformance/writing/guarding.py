"""WRT-05: who is let through by a guard, in every stage of a process's life."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ddp_conformance.frame.case import Case
from ddp_conformance.frame.history import Record
from ddp_conformance.frame.ranks import Ranks
from ddp_conformance.frame.recording import cases_of, describe, judge_each, record
from ddp_conformance.frame.registry import Check, Guarantee
from ddp_conformance.frame.verdict import Violation
from ddp_conformance.launched.order import Named
from ddp_conformance.launched.start.forks import (
    become_rank,
    forget_rank,
    in_child,
    in_fresh_process,
)
from ddp_conformance.stage.machines import Place, environment_of, several_machines
from ddp_conformance.writing.history import Guarded
from ddp_conformance.writing.judge_publishing import judge_guard
from ddp_conformance.writing.subjects import Guard

T = TypeVar("T")

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
    one, *several = places_of(case)
    # Each of these imports the factory's module, so there is one for a launcher; forks are cheap.
    for how, place, environment in starts_of(subject, several or [one]):
        answer = elsewhere(subject, functools.partial(ask_at_start, case, environment))
        yield replace(answer, stage=f"before the process group, {how}", machine=place.machine)
    starts = starts_of(subject, [one, *several])
    environments = [environment for *_, environment in starts]
    answers = elsewhere(subject, functools.partial(ask_after_forks, case, environments))
    for (how, place, _), answer in zip(starts, answers, strict=True):
        yield replace(answer, stage=f"made before the fork, {how}", machine=place.machine)


def starts_of(subject: Guard, places: Sequence[Place]) -> list[tuple[str, Place, dict[str, str]]]:
    """Each launcher at each place: in words, the place, and the variables that it sets there."""
    return [
        (f"under {launcher}{_on(place)}", place, environment_of(launcher, place))
        for launcher in subject.launchers
        for place in places
    ]


def places_of(case: Case) -> tuple[Place, ...]:
    """This rank's place on one machine, and on several where the ranks can be shared out."""
    numbers = sorted({1, several_machines(case.world_size)})
    return tuple(Place(case.rank, case.world_size, machines) for machines in numbers)


def _on(place: Place) -> str:
    return f" on {place.machines} machines" if place.machines > 1 else ""


def elsewhere(subject: Guard, question: Callable[[Callable[[], Any]], T]) -> T:
    """The answer of a process that a launcher has just started, before it has a rank.

    It imports the factory's module by itself: in the rank's own process modules know the rank
    already. A factory that no other process can import is asked in a fork of the rank.
    """
    try:
        load: Callable[[], Any] = Named.of(subject.make).load
    except ValueError:
        return in_child(lambda: question(lambda: subject.make))
    return in_fresh_process(functools.partial(question, load))


def ask(guard: Any, case: Case) -> Guarded:
    """Whether the guard lets this process act, or what it raises."""
    acted: list[bool] = []
    try:
        guard(lambda: acted.append(True))
    except Exception as error:
        return Guarded(case.rank, "", False, describe(error))
    return Guarded(case.rank, "", bool(acted))


def ask_at_start(case: Case, environment: dict[str, str], load: Callable[[], Any]) -> Guarded:
    """In a process that a launcher has just started."""
    forget_rank()
    become_rank(environment)
    try:
        guard = load()(case)
    except Exception as error:
        return Guarded(case.rank, "", False, describe(error))
    return ask(guard, case)


def ask_after_forks(
    case: Case, environments: Sequence[dict[str, str]], load: Callable[[], Any]
) -> list[Guarded]:
    """With a guard that the launcher's own process has made, before its children had ranks."""
    forget_rank()
    try:
        guard = load()(case)
    except Exception as error:
        return [Guarded(case.rank, "", False, describe(error))] * len(environments)

    def as_rank(environment: dict[str, str]) -> Guarded:
        become_rank(environment)
        return ask(guard, case)

    return [in_child(functools.partial(as_rank, one)) for one in environments]


def find_wrong_guard(subject: Guard, ranks: Ranks) -> tuple[Violation, ...]:
    """WRT-05."""
    runs = record(subject, ranks, cases_of(ranks, (1,)), observe_guard)
    each_machine = "once_per_node" in subject.traits
    return judge_each(runs, lambda run: judge_guard(run.history, each_machine=each_machine))


CHECKS = (Check(WRT_05, (Guard,), find_wrong_guard),)
