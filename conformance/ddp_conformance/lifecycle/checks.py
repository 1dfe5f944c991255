"""LIF-01 to LIF-09: a training program from its start to its end.

The program runs in processes of its own and is judged from what it did, not from the
order of its lines: the stages that it went through, what its optimizers changed, what its
loaders fetched, its files, and how its ranks ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddp_conformance.framework.history import Run
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.registry import Check, Guarantee
from ddp_conformance.framework.verdict import UndecidedError, Violation
from ddp_conformance.launched.endings import came_through
from ddp_conformance.launched.history import Changes, Chose, Fetched, Happened, Optimized
from ddp_conformance.launched.order import Scenario
from ddp_conformance.lifecycle import judge
from ddp_conformance.lifecycle.subjects import Training, terms_of
from ddp_conformance.lifecycle.training_runs import demand_success, run_of

LIF_01 = Guarantee(
    "LIF-01",
    "A training program MUST come to its end on all ranks, with exit code 0, through "
    "initialisation, wrapping, compilation and steps.",
    starred=True,
)
LIF_02 = Guarantee(
    "LIF-02",
    "What depends on the number of ranks, such as each rank's samples, MUST be chosen after the "
    "process group is initialised.",
    starred=True,
)
LIF_03 = Guarantee(
    "LIF-03",
    "Results MUST NOT depend on the speed of a rank.",
)
LIF_04 = Guarantee(
    "LIF-04",
    "After wrapping, the optimizer MUST own exactly the live trainable parameters, and its steps "
    "MUST change them.",
)
LIF_05 = Guarantee(
    "LIF-05",
    "Compiled training MUST match eager training, and its checkpoints MUST load into the bare "
    "module.",
)
LIF_06 = Guarantee(
    "LIF-06",
    "After a run no process group, child process, thread, listening socket or shared memory of "
    "it MUST be left, and a new process group MUST be possible.",
)
LIF_07 = Guarantee(
    "LIF-07",
    "An exception, a signal or an early exit on any rank MUST fail the run.",
    starred=True,
)
LIF_08 = Guarantee(
    "LIF-08",
    "All ranks MUST end in bounded time, also when one of them dies or leaves the others' path.",
    starred=True,
)
LIF_09 = Guarantee(
    "LIF-09",
    "Backend, world size and kind of device MUST be the same on all ranks, also where a rank "
    "lacks a GPU.",
    tier=2,
)


def find_unfinished(subject: Training, ranks: Ranks) -> Sequence[Violation]:
    """Check LIF-01."""
    return judge.judge_finished(run_of(subject, ranks).history)


def find_wrong_shares(subject: Training, ranks: Ranks) -> Sequence[Violation]:
    """Check LIF-02."""
    run = finished(subject, ranks)
    if not any(isinstance(seen, Fetched) and seen.trained for seen in run.history):
        raise UndecidedError(
            f"{subject.name} makes no step on samples of a DataLoader with a map-style data set; "
            "check a loader of a stream as Loader(traits={'iterable'})"
        )
    return judge.judge_deliveries(run.history, ranks.world_size, terms_of(subject))


def find_speed_dependence(subject: Training, ranks: Ranks) -> Sequence[Violation]:
    """Check LIF-03."""
    base = run_of(subject, ranks)

    def runs(looked: bool) -> dict[Scenario, Run]:
        scenarios = [Scenario(late=rank, looked=looked) for rank in range(ranks.world_size)]
        return {scenario: run_of(subject, ranks, scenario) for scenario in scenarios}

    late = runs(looked=False)
    if any(isinstance(r, Changes) for run in (base, *late.values()) for r in run.history):
        late |= runs(looked=True)
    if not any(came_through(run.history) for run in (base, *late.values())):
        demand_success(subject, base)
    return [
        replace(violation, case=scenario.label)
        for scenario, run in late.items()
        for violation in judge.judge_same_results(base.history, run.history)
    ]


def find_idle_optimizer(subject: Training, ranks: Ranks) -> Sequence[Violation]:
    """Check LIF-04."""
    history = finished(subject, ranks).history
    if not any(isinstance(seen, Optimized) for seen in history):
        raise UndecidedError(f"{subject.name} makes no optimizer step")
    return judge.judge_optimizer(history)


def find_compile_harm(subject: Training, ranks: Ranks) -> Sequence[Violation]:
    """Check LIF-05."""
    compiled = finished(subject, ranks)
    eager = run_of(subject, ranks, Scenario(eager=True))
    demand_success(subject, eager)
    return judge.judge_compiled(compiled.history, eager.history)


def find_leftovers(subject: Training, ranks: Ranks) -> Sequence[Violation]:
    """Check LIF-06."""
    return judge.judge_nothing_left(finished(subject, ranks).history)


def find_hidden_deaths(subject: Training, ranks: Ranks) -> Sequence[Violation]:
    """Check LIF-07."""
    return [
        replace(violation, case=scenario.label)
        for scenario, run in deaths(subject, ranks)
        for violation in judge.judge_death_shows(run.history)
    ]


def find_endless(subject: Training, ranks: Ranks) -> Sequence[Violation]:
    """Check LIF-08."""
    found = judge.judge_ended_in_time(run_of(subject, ranks).history)
    if found:
        return found
    return [
        replace(violation, case=scenario.label)
        for scenario, run in deaths(subject, ranks)
        for violation in judge.judge_ended_in_time(run.history)
    ]


def deaths(subject: Training, ranks: Ranks) -> Iterator[tuple[Scenario, Run]]:
    """One run for each way to die and each rank; the undisturbed one must come through."""
    for death in subject.deaths:
        # On one rank, an exit with code 0 looks like a success.
        if death == "exits with 0" and ranks.world_size == 1:
            continue
        for rank in range(ranks.world_size):
            scenario = Scenario(dying=rank, death=death)
            run = run_of(subject, ranks, scenario)
            if not any(isinstance(r, Happened) and r.stage == "fault" for r in run.history):
                raise UndecidedError(f"{subject.name} makes no optimizer step to die at")
            yield scenario, run


def find_disagreement(subject: Training, ranks: Ranks) -> Sequence[Violation]:
    """Check LIF-09."""
    history = run_of(subject, ranks).history
    if not any(isinstance(seen, Chose) for seen in history):
        raise UndecidedError(f"{subject.name} makes no process group and wraps no module")
    found = list(judge.judge_agreement(history))
    if "falls_back" in subject.traits and ranks.world_size > 1:
        scenario = Scenario(lone=ranks.world_size - 1)
        other = judge.judge_agreement(run_of(subject, ranks, scenario).history)
        found += [replace(violation, case=scenario.label) for violation in other]
    return found


def finished(subject: Training, ranks: Ranks) -> Run:
    """The undisturbed run, which must have come to its end."""
    run = run_of(subject, ranks)
    demand_success(subject, run)
    return run


CHECKS = (
    Check(LIF_01, (Training,), find_unfinished),
    Check(LIF_02, (Training,), find_wrong_shares),
    Check(LIF_03, (Training,), find_speed_dependence),
    Check(LIF_04, (Training,), find_idle_optimizer),
    Check(LIF_05, (Training,), find_compile_harm, needs=frozenset({"compiles"})),
    Check(LIF_06, (Training,), find_leftovers),
    Check(LIF_07, (Training,), find_hidden_deaths),
    Check(LIF_08, (Training,), find_endless),
    Check(LIF_09, (Training,), find_disagreement),
)
