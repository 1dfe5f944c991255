"""Judge of MOD-09: a pure function from what ranks saw of statistics to violations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ddp_conformance.framework.history import History
from ddp_conformance.framework.verdict import Violation
from ddp_conformance.launched.endings import ranks_that_came_through
from ddp_conformance.model.history import Statistics
from ddp_conformance.model.judge import farthest_off
from ddp_conformance.model.owners import Owners
from ddp_conformance.model.rounding_limits import RoundingLimits

Values = Mapping[str, Sequence[float]]


def judge_statistics(history: History, tolerance: float) -> tuple[Violation, ...]:
    """Judge whether after the first step all ranks have the statistics of one process that has all
    samples.

    Only that step is judged: in later ones an optimizer may have made different parameters of
    rounding errors. Adam does so with a bias before a normalisation, as its gradient is zero.
    """
    seen = [record for record in history if isinstance(record, Statistics)]
    ranks = [record for record in seen if not record.alone]
    if not any(record.values for record in ranks) and (ranks or ranks_that_came_through(history)):
        return (Violation("no running_mean or running_var was seen in the model"),)
    wanted = next((dict(record.values) for record in seen if record.alone), None)
    if wanted is None:
        return ()  # the single process broke off, which other violations show
    owners, limits = Owners(history), RoundingLimits(history)
    everywhere = {name for record in ranks for name, _ in record.values}
    return tuple(
        Violation(f"step 1, rank {record.rank}: {text}")
        for record in sorted(ranks, key=lambda record: record.rank)
        for text in _wrong(
            dict(record.values),
            {
                name: right
                for name, right in wanted.items()
                if owners.have(record.rank, name) or name not in everywhere
            },
            tolerance,
            limits,
        )
    )


def _wrong(own: Values, wanted: Values, tolerance: float, limits: RoundingLimits) -> Iterator[str]:
    """The first statistic that differs."""
    for name in dict.fromkeys((*own, *wanted)):
        values, right = own.get(name, ()), wanted.get(name, ())
        if len(values) != len(right):
            yield f"{name} has {len(values)} values, of one process {len(right)}"
            return
        if off := farthest_off(values, right, tolerance, limits.of_statistic(1, name)):
            yield f"{name} has {off[0]:.6g}, of one process {off[1]:.6g}"
            return
