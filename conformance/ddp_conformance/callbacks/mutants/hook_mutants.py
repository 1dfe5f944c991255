"""CBK-01 and CBK-02: loops whose ranks call or decide different things."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ddp_conformance.callbacks.subjects import Callback as CallbackSubject
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant

Steps: TypeAlias = Iterator[dict[str, Any] | None]

STEPS = 4

logger = logging.getLogger(__name__)


def local_loss(case: Case, step: int) -> Tensor:
    """The loss of this rank's batch: falls on rank 0, and rises on the others."""
    slope = -1.0 if case.rank == 0 else 0.75
    return torch.tensor(10.0 + slope * step + case.rank)


def reduce_gradient(case: Case) -> Tensor:
    """What the backward pass of a model with one weight calls."""
    gradient = torch.tensor(float(case.rank + 1))
    dist.all_reduce(gradient)
    return gradient


def mean_loss(case: Case, step: int) -> float:
    """The mean of the ranks' losses, equal on all of them."""
    loss = local_loss(case, step)
    dist.all_reduce(loss)
    return float(loss) / case.world_size


# ------------------------------------------------------------- CBK-01: the same collectives


def logged_on_rank_zero(case: Case) -> Steps:
    """``if rank == 0: log(...)`` around a mean that is a collective: sums it with a gradient."""
    for step in range(STEPS):
        if case.rank == 0:
            mean_loss(case, step)
        reduce_gradient(case)
        yield None


def logged_before_or_after(case: Case) -> Steps:
    """Equally many of one shape, in another order: neither a hang nor a message."""
    for step in range(STEPS):
        if case.rank == 0:
            mean_loss(case, step)
            reduce_gradient(case)
        else:
            reduce_gradient(case)
            mean_loss(case, step)
        yield None


def gradient_for_each_sample(case: Case) -> Steps:
    """Make a step for each sample of the rank; ranks have unequally many."""
    for _ in range(case.rank, case.size, case.world_size):
        reduce_gradient(case)
        yield None


def worst_on_rank_zero(case: Case) -> Steps:
    """The greatest loss on rank 0, and the sum on the others."""
    for step in range(STEPS):
        op = dist.ReduceOp.MAX if case.rank == 0 else dist.ReduceOp.SUM
        dist.all_reduce(local_loss(case, step), op)
        yield None


def functional_worst_on_rank_zero(case: Case) -> Steps:
    """The same by functional collectives, which C++ issues."""
    group: Any = dist.group.WORLD
    for step in range(STEPS):
        float(all_reduce(local_loss(case, step), "max" if case.rank == 0 else "sum", group))
        yield None


def functional_on_rank_zero(case: Case) -> Steps:
    """Rank 0 calls the functional form, and the others the one that it pairs with."""
    group: Any = dist.group.WORLD
    for step in range(STEPS):
        loss = local_loss(case, step)
        if case.rank == 0:
            float(all_reduce(loss, "sum", group))
        else:
            dist.all_reduce(loss)
        yield None


def norm_of_shards(case: Case) -> float:
    """The norm of a tensor of which each rank has a part."""
    mesh = init_device_mesh("cpu", (case.world_size,))
    part = torch.arange(2.0) + 2 * case.rank
    norm = DTensor.from_local(part, mesh, [Shard(0)]).norm()
    assert isinstance(norm, DTensor)
    return float(norm.full_tensor())


def norm_on_rank_zero(case: Case) -> Steps:
    """A norm for the log, for which DTensor makes a reduction."""
    for _ in range(STEPS):
        if case.rank == 0:
            norm_of_shards(case)
        reduce_gradient(case)
        yield None


def norm_on_all(case: Case) -> Steps:
    """The same norm, on all ranks."""
    for _ in range(STEPS):
        norm_of_shards(case)
        reduce_gradient(case)
        yield None


def broadcast_by_each(case: Case) -> Steps:
    """Rank 0 broadcasts, and the others wait for a broadcast of the last rank."""
    for step in range(STEPS):
        dist.broadcast(local_loss(case, step), 0 if case.rank == 0 else case.world_size - 1)
        yield None


def group_on_rank_zero(case: Case) -> Steps:
    """A group of rank 0's own, made there alone: the names of later groups differ."""
    for _ in range(STEPS):
        if case.rank == 0:
            dist.destroy_process_group(dist.new_group([0]))
        reduce_gradient(case)
        yield None


def groups_of_each(case: Case) -> Steps:
    """A group for each rank, made on all of them, and one that each rank may make alone."""
    alone = [dist.new_group([rank]) for rank in range(case.world_size)][case.rank]
    if case.rank == 0:
        dist.destroy_process_group(dist.new_group([0], use_local_synchronization=True))
    for _ in range(STEPS):
        dist.barrier(group=alone)
        reduce_gradient(case)
        yield None
    dist.destroy_process_group(alone)


def gradients_of_the_longest(case: Case) -> Steps:
    """Make as many steps as the rank with the most; the others have nothing to add in the last
    one.
    """
    steps = torch.tensor(len(range(case.rank, case.size, case.world_size)))
    dist.all_reduce(steps, dist.ReduceOp.MAX)
    for _ in range(int(steps)):
        reduce_gradient(case)
        yield None


def logged_every_tenth(case: Case, *, by: int | None = None) -> Steps:
    """A mean in each tenth step of an epoch; by one rank alone, or by all."""
    for step in range(-(-case.size // case.world_size)):
        if step % 10 == 9 and by in (None, case.rank):
            mean_loss(case, step)
        reduce_gradient(case)
        yield None


def logged_every_tenth_by_one(case: Case) -> Steps:
    """``if step % log_every == 0 and rank == 0``."""
    return logged_every_tenth(case, by=0)


def rate_of_the_rank_every_tenth(case: Case) -> Steps:
    """A rate that follows the mean loss, and in each tenth step the rank's own."""
    for step in range(-(-case.size // case.world_size)):
        loss = mean_loss(case, step)
        yield {"rate": 0.1 / (1 + (float(local_loss(case, step)) if step % 10 == 9 else loss))}


def counted_in_integers(case: Case) -> Steps:
    """One rank takes its count from ``len`` and not from a tensor; gloo adds the bits."""
    for _ in range(STEPS):
        count = torch.tensor(3.0) if case.rank == 0 else torch.tensor(3)
        dist.all_reduce(count)
        yield None


def in_pair(case: Case, *metrics: Callable[[dist.ProcessGroup], None]) -> Steps:
    """A loop in which ranks 0 and 1 reduce metrics in a group of their own."""
    pair = dist.new_group([0, 1] if case.world_size > 1 else [0])
    try:
        for _ in range(STEPS):
            for metric in metrics if case.rank < 2 else ():
                metric(pair)
            reduce_gradient(case)
            yield None
    finally:
        if case.rank < 2:
            dist.destroy_process_group(pair)


def sum_hits(group: dist.ProcessGroup) -> None:
    """One of two metrics."""
    dist.all_reduce(torch.tensor(1.0), group=group)


def sum_misses(group: dist.ProcessGroup) -> None:
    """The other one."""
    dist.all_reduce(torch.tensor(2.0), group=group)


def swapped_in_group(case: Case) -> Steps:
    """Metrics from a set, in an order of each process's own, in a group of some of the ranks."""
    order = (sum_hits, sum_misses) if case.rank == 0 else (sum_misses, sum_hits)
    return in_pair(case, *order)


def ordered_in_group(case: Case) -> Steps:
    """The same in one order; ranks beyond the pair have nothing to do with it."""
    return in_pair(case, sum_hits, sum_misses)


def sent_and_received(case: Case) -> Steps:
    """The two ends of a broadcast in two functions, and two branches that reduce."""
    for step in range(STEPS):
        send(case) if case.rank == 0 else receive(case)
        if case.rank == 0:
            total = local_loss(case, step)
            dist.all_reduce(total)
        else:
            nothing = torch.tensor(0.0)
            dist.all_reduce(nothing)
        yield None


def send(case: Case) -> None:
    """Rank 0's end."""
    dist.broadcast(torch.tensor(1.0), src=0)


def receive(case: Case) -> None:
    """The other ranks' end."""
    dist.broadcast(torch.empty(()), src=0)


def different_lines(case: Case) -> Steps:
    """The idiom that lets rank 0 go first: two barriers, of which each rank makes one."""
    for _ in range(STEPS):
        if case.rank != 0:
            dist.barrier()
        if case.rank == 0:
            dist.barrier()
        yield None


# ------------------------------------------------------------- CBK-02: the same decisions


def stops_after_barrier(case: Case) -> Steps:
    """A barrier makes ranks meet, it does not make them agree."""
    best = math.inf
    for step in range(STEPS):
        loss = float(local_loss(case, step))
        stop, best = loss > best, min(best, loss)
        dist.barrier()
        yield {"stop": stop}


def stops_together(case: Case) -> Steps:
    """All stop as soon as one of them would."""
    best = math.inf
    for step in range(STEPS):
        loss = float(local_loss(case, step))
        worse, best = torch.tensor(float(loss > best)), min(best, loss)
        dist.all_reduce(worse, dist.ReduceOp.MAX)
        yield {"stop": bool(worse)}
        if worse:
            return


def plateau(loss_of: Callable[[Case, int], float], case: Case) -> Steps:
    """torch's scheduler, fed with a loss in every step."""
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    scheduler = ReduceLROnPlateau(optimizer, patience=0)
    for step in range(STEPS):
        scheduler.step(loss_of(case, step))
        yield {"lr": optimizer.param_groups[0]["lr"]}


def plateau_of_own_loss(case: Case) -> Steps:
    """Each rank lowers its rate when its own loss stops falling."""
    return plateau(lambda case, step: float(local_loss(case, step)), case)


def plateau_of_mean_loss(case: Case) -> Steps:
    """The same with the mean."""
    return plateau(mean_loss, case)


def skips_alone(case: Case) -> Steps:
    """A gradient that is not finite on one rank; the others make the step."""
    for step in range(STEPS):
        skip = step == 2 and case.rank == case.world_size - 1
        reduce_gradient(case)
        yield {"skip": skip}


def skips_together(case: Case) -> Steps:
    """The same, and all ranks skip the step."""
    for step in range(STEPS):
        bad = torch.tensor(float(step == 2 and case.rank == case.world_size - 1))
        dist.all_reduce(bad)
        reduce_gradient(case)
        yield {"skip": bool(bad)}


def best_by_own_loss(case: Case) -> Steps:
    """Each rank has another best checkpoint: the ranks resume from different files."""
    losses: list[float] = []
    for step in range(STEPS):
        losses.append(float(local_loss(case, step)))
        yield {"best": f"epoch-{losses.index(min(losses))}.ckpt"}


def best_told_by_rank_zero(case: Case) -> Steps:
    """Rank 0 chooses, and broadcasts its choice."""
    losses: list[float] = []
    for step in range(STEPS):
        losses.append(float(local_loss(case, step)))
        best = [losses.index(min(losses))]
        dist.broadcast_object_list(best, src=0)
        yield {"best": f"epoch-{best[0]}.ckpt"}


def resolution_under_guard(case: Case) -> Steps:
    """A guard that belongs on files, around the schedule."""
    resolution = 8
    for step in range(STEPS):
        if case.rank == 0:
            resolution = 8 * (step + 1)
        yield {"resolution": resolution}


def one_or_a_whole(case: Case) -> Steps:
    """One decision in the types that ranks come to it by: a literal, a quotient, a tensor."""
    for step in range(STEPS):
        rate = 1 if case.rank == 0 else torch.tensor(2.0) / 2
        late = torch.tensor(float(step == STEPS - 1))
        keep = {"best", "last"} if case.rank == 0 else {"last", "best"}
        yield {"lr": rate, "stop": late if case.rank == 0 else bool(late), "keep": keep}


def rate_of_single_precision(case: Case) -> Steps:
    """A rate that went through a tensor on one rank: nearly the same."""
    for _ in range(STEPS):
        yield {"lr": 0.1 if case.rank == 0 else torch.tensor(0.1)}


DECIDES = frozenset({"decides"})


def checkpoints(step: int) -> set[str]:
    """Checkpoints of equal losses."""
    return {f"epoch-{epoch}.pt" for epoch in range(step + 8)}


def first_of_a_set(case: Case) -> Steps:
    """``min(candidates, key=loss)``, of a set, where several have the least."""
    for step in range(STEPS):
        yield {"best": min(checkpoints(step), key=lambda _: 0.5)}


def first_of_a_sorted_set(case: Case) -> Steps:
    """The same of names that are sorted."""
    for step in range(STEPS):
        yield {"best": min(sorted(checkpoints(step)), key=lambda _: 0.5)}


def first_of_rank_zeros_set(case: Case) -> Steps:
    """The same, taken by rank 0 for all."""
    for step in range(STEPS):
        best = [min(checkpoints(step), key=lambda _: 0.5)]
        dist.broadcast_object_list(best, src=0)
        yield {"best": best[0]}


def saves_every_minute(
    case: Case, read: Callable[[], float] = time.time, *, agree: bool = False
) -> Steps:
    """A checkpoint when a minute is over, by the clock of each rank or of rank 0 for all."""
    saved = read()
    for step in range(-(-case.size // case.world_size)):
        due = torch.tensor(step % 10 == 9 and read() - saved > 60)
        if agree:
            dist.broadcast(due, src=0)
        if due:
            saved = read()
        yield {"save": due}


def saves_every_minute_of_rank_zero(case: Case) -> Steps:
    """The same, decided by rank 0."""
    return saves_every_minute(case, agree=True)


def stops_in_time(case: Case, *, agree: bool = False) -> Steps:
    """Stops after half an hour of a monotonic clock, for itself or when one rank would."""
    began = time.monotonic()
    for _ in range(STEPS):
        late = torch.tensor(int(time.monotonic() - began > 1800))
        if agree:
            dist.all_reduce(late, dist.ReduceOp.MAX)
        yield {"stop": late}
        if late:
            return


def stops_in_time_together(case: Case) -> Steps:
    """The same, as soon as one rank would."""
    return stops_in_time(case, agree=True)


def stops_at_an_hour(case: Case) -> Steps:
    """The end is agreed on, and each rank looks for itself whether it has come."""
    end = torch.tensor([time.time() + 1800], dtype=torch.float64)
    dist.broadcast(end, src=0)
    for _ in range(STEPS):
        yield {"stop": time.clock_gettime(time.CLOCK_REALTIME) > float(end)}


def meets_every_minute(case: Case) -> Steps:
    """A barrier of the ranks for which a minute is over."""
    met = time.perf_counter()
    for _ in range(STEPS):
        if time.perf_counter() - met > 60:
            dist.barrier()
            met = time.perf_counter()
        yield None


def limits_each_step(case: Case) -> Steps:
    """Each rank ends with an error if a step takes it longer than ten minutes."""
    began = time.monotonic()
    for step in range(STEPS):
        if time.monotonic() - began > 600:
            raise TimeoutError(f"step {step}")
        began = time.monotonic()
        yield {"rate": 0.1 / (step + 1)}


def measures_its_pace(case: Case) -> Steps:
    """Each rank shows how fast it is, and has a watchdog; what it decides depends on neither."""
    beats = [time.monotonic()]
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(0.001):
            assert time.monotonic() - beats[-1] < 600

    with futures.ThreadPoolExecutor(1) as watchdog:
        watching = watchdog.submit(watch)
        for step in range(STEPS):
            beats.append(time.monotonic())
            yield {"rate": 0.1 / (step + 1)}
            logger.debug("step %d took %.1f s", step, beats[-1] - beats[-2])
        stopped.set()
        watching.result()


def calls(make: Callable[[Case], Steps]) -> CallbackSubject:
    """A subject that is checked for its collectives."""
    return CallbackSubject(make)


def decides(make: Callable[[Case], Steps]) -> CallbackSubject:
    """A subject that reports its decisions."""
    return CallbackSubject(make, DECIDES)


MUTANTS = (
    Mutant(calls(logged_on_rank_zero), "CBK-01", "extra reduction of one shape on rank 0"),
    Mutant(calls(logged_before_or_after), "CBK-01", "metric and gradient in another order"),
    Mutant(calls(gradient_for_each_sample), "CBK-01", "a step for each sample of the rank"),
    Mutant(calls(logged_every_tenth_by_one), "CBK-01", "a mean on rank 0, every tenth step"),
    Mutant(calls(counted_in_integers), "CBK-01", "float on one rank, integer on others"),
    Mutant(calls(worst_on_rank_zero), "CBK-01", "maximum on rank 0, sum on others"),
    Mutant(
        calls(functional_worst_on_rank_zero),
        "CBK-01",
        "maximum on rank 0, sum on others, by functional collectives",
    ),
    Mutant(calls(norm_on_rank_zero), "CBK-01", "the norm of a DTensor on rank 0"),
    Mutant(calls(broadcast_by_each), "CBK-01", "a broadcast of another root on rank 0"),
    Mutant(calls(swapped_in_group), "CBK-01", "another order in a subgroup"),
    Mutant(calls(group_on_rank_zero), "CBK-01", "new_group on one rank"),
    Mutant(decides(stops_after_barrier), "CBK-02", "barrier in place of a reduction"),
    Mutant(decides(plateau_of_own_loss), "CBK-02", "ReduceLROnPlateau of the local loss"),
    Mutant(decides(skips_alone), "CBK-02", "step skipped on one rank"),
    Mutant(decides(best_by_own_loss), "CBK-02", "best checkpoint by the local loss"),
    Mutant(decides(first_of_a_set), "CBK-02", "the first of equals in a set of names"),
    Mutant(decides(resolution_under_guard), "CBK-02", "resolution changed on rank 0 only"),
    Mutant(decides(rate_of_the_rank_every_tenth), "CBK-02", "its own rate every tenth step"),
    Mutant(calls(meets_every_minute), "CBK-01", "a barrier by each rank's clock", (2,)),
    Mutant(decides(saves_every_minute), "CBK-02", "a checkpoint by each rank's clock", (2,)),
    Mutant(decides(stops_in_time), "CBK-02", "a stop by each rank's monotonic clock", (2,)),
    Mutant(decides(stops_at_an_hour), "CBK-02", "an agreed end by each rank's clock", (2, 3)),
    Mutant(decides(rate_of_single_precision), "CBK-02", "rate rounded to float32 on one rank"),
)

BENIGN_VARIANTS = (
    BenignVariant(calls(ordered_in_group), "collectives of some ranks in a group of their own"),
    BenignVariant(calls(groups_of_each), "a group of each rank's own"),
    BenignVariant(
        calls(gradients_of_the_longest), "as many steps as the rank with the most samples"
    ),
    BenignVariant(calls(logged_every_tenth), "a mean of all ranks, every tenth step"),
    BenignVariant(calls(sent_and_received), "sender and receivers in different functions"),
    BenignVariant(calls(functional_on_rank_zero), "a functional collective on rank 0 alone"),
    BenignVariant(calls(norm_on_all), "the norm of a DTensor on all ranks"),
    BenignVariant(calls(different_lines), "each rank at a barrier of its own line"),
    BenignVariant(decides(stops_together), "all stop when one would"),
    BenignVariant(decides(plateau_of_mean_loss), "ReduceLROnPlateau of the mean loss"),
    BenignVariant(decides(skips_together), "a step skipped on all ranks"),
    BenignVariant(decides(best_told_by_rank_zero), "best checkpoint of rank 0 for all"),
    BenignVariant(decides(first_of_a_sorted_set), "the first of equals in a sorted set", (2, 3)),
    BenignVariant(decides(first_of_rank_zeros_set), "the first of equals in rank 0's set", (2, 3)),
    BenignVariant(
        decides(saves_every_minute_of_rank_zero), "a checkpoint by the clock of rank 0", (2,)
    ),
    BenignVariant(
        decides(stops_in_time_together), "all stop when one would, by its monotonic clock", (3,)
    ),
    BenignVariant(decides(limits_each_step), "an error for a step that takes too long", (2,)),
    BenignVariant(
        decides(measures_its_pace), "monotonic clocks for a display and a watchdog", (1, 2)
    ),
    BenignVariant(decides(one_or_a_whole), "1, 1.0 and a tensor, a flag and its number, a set"),
)
