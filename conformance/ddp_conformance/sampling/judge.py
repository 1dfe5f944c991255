"""Judges of the sampling guarantees: pure functions from what ranks saw to violations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, combinations, islice, takewhile
from typing import TypeAlias

from ddp_conformance.framework.allowance import Allowance, Terms
from ddp_conformance.framework.history import History, Refused
from ddp_conformance.framework.shares import equal_draws, uneven_passes
from ddp_conformance.framework.verdict import Violation, ranks_in_words
from ddp_conformance.sampling.history import Delivered, Drawn, Draws, EpochEnd, Sample

Items: TypeAlias = tuple[tuple[int, ...], ...]
"""What a sampler draws: batches of indices, or of one index each."""

SHOWN = 6
"""Indices shown of an order."""

RELIABLE_ORDER = 8
"""The least number of samples with which a repeated order is no coincidence (1 in 8! = 40,320)."""


LEAST_DRAWS = 3
"""Streams with fewer numbers are not judged."""

UNLIKELY = 1e-6
"""Streams that agree are wrong if right ones would agree with less than this probability."""

PERIODS = (1, 2, 3, 4)
"""Periods, in epochs, with which the orders of a wrong sampler may come again."""

NOTHING_MORE = Allowance()

RETURNS = 16
"""Epochs in a row in which orders must come again."""


def judge_coverage(
    history: History, size: int, world_size: int, terms: Terms, workers: int = 1
) -> tuple[Violation, ...]:
    """Every index is delivered, and no more are repeated or left out than is declared."""
    endless = "endless" in terms.traits
    allowance = terms.allowed_in_all(size, world_size, workers)
    found: list[Violation] = []
    for epoch, samples in _by_epoch(history):
        found += _foreign(epoch, samples, size)
        if "replacement" in terms.traits:
            if not endless:
                found += _another_total(epoch, len(samples), terms.total(size), allowance)
        elif not endless:
            for members in terms.members(size):
                own = terms.allowed(len(members), world_size, workers)
                found += _coverage_of(
                    epoch, samples, members, own, terms.copies, partly=terms.draws is not None
                )
            if terms.draws is not None:
                found += _another_total(epoch, len(samples), terms.total(size), allowance)
    if "replacement" in terms.traits:
        found += judge_draws(history)
    elif endless:
        found += _uneven_passes(history, size, world_size, terms.copies, allowance)
    ended = _judge_endless(history) if endless else judge_ended(history)
    return (*_without_end(history), *ended, *found)


def judge_draws(history: History) -> tuple[Violation, ...]:
    """No two ranks, nor workers where samples name theirs, make the same draws in an epoch."""
    return tuple(
        violation
        for epoch, samples in _by_epoch(history)
        for violation in _same_draws(epoch, samples)
    )


def judge_exactly_once(history: History, size: int) -> tuple[Violation, ...]:
    """Every index is delivered once, whatever the traits allow elsewhere."""
    return (
        *_without_end(history),
        *judge_ended(history),
        *(
            violation
            for epoch, samples in _by_epoch(history)
            for violation in (
                *_foreign(epoch, samples, size),
                *_coverage_of(epoch, samples, range(size)),
            )
        ),
    )


def judge_refusals(history: History) -> tuple[Violation, ...]:
    """Ranks that refuse their case do so together, with one type of exception."""
    refused = [record for record in history if isinstance(record, Refused)]
    ranks = {record.rank for record in history if isinstance(record, Refused | Sample | EpochEnd)}
    return _refusals(refused, sorted(ranks - {refusal.rank for refusal in refused}))


def judge_ended(history: History) -> tuple[Violation, ...]:
    """Every pass came to an end by itself."""
    return tuple(
        Violation(f"rank {end.rank} did not end the epoch within {end.batches} batches", end.epoch)
        for end in history
        if isinstance(end, EpochEnd) and not end.exhausted
    )


def _judge_endless(history: History) -> tuple[Violation, ...]:
    """No pass came to an end."""
    return tuple(
        Violation(f"rank {end.rank} ends after {end.batches} batches", end.epoch)
        for end in history
        if isinstance(end, EpochEnd) and end.exhausted
    )


def judge_equal_batches(history: History) -> tuple[Violation, ...]:
    """All ranks deliver equally many batches in an epoch."""
    batches: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for end in history:
        if isinstance(end, EpochEnd):
            batches[end.epoch][end.rank] = end.batches
    return (
        *_without_end(history),
        *judge_ended(history),
        *(
            Violation(_unequal(counts), epoch)
            for epoch, counts in sorted(batches.items())
            if len(set(counts.values())) > 1
        ),
    )


def _without_end(history: History) -> Iterator[Violation]:
    """A violation for each rank and epoch without an end."""
    seen = [record for record in history if isinstance(record, EpochEnd | Sample)]
    if not seen:
        yield Violation("no epoch was seen")
    ranks = {record.rank for record in seen}
    for epoch in sorted({record.epoch for record in seen}):
        ended = {r.rank for r in seen if isinstance(r, EpochEnd) and r.epoch == epoch}
        for rank in sorted(ranks - ended):
            yield Violation(f"rank {rank} never came to the end of the epoch", epoch)


def judge_order_changes(history: History) -> tuple[Violation, ...]:
    """No rank has the same order in two epochs; ranks with few samples are not judged."""
    orders = _orders(history)
    return tuple(
        Violation(f"rank {rank} has the order of epoch {before} again: {_start(order)}", epoch)
        for (rank, epoch), order in sorted(orders.items())
        for before in range(epoch)
        if len(set(order)) >= RELIABLE_ORDER and orders.get((rank, before)) == order
    )


def judge_order_returns(history: History) -> tuple[Violation, ...]:
    """Judge whether on no rank the same few orders come again and again, from some epoch on.

    A single order that comes twice proves nothing: batches of a bucket have few orders. A sampler
    of ``k`` orders repeats them by chance in ``RETURNS`` epochs with a probability of ``1/k`` to
    that power.
    """
    orders: defaultdict[int, dict[int, tuple[int, ...]]] = defaultdict(dict)
    for (rank, epoch), order in sorted(_orders(history).items()):
        if len(set(order)) >= RELIABLE_ORDER:
            orders[rank][epoch] = order
    return tuple(
        Violation(f"rank {rank} has the order of {_before(period)} again, in every epoch on", epoch)
        for rank, by_epoch in orders.items()
        for period, epoch in islice(_returns(by_epoch), 1)
    )


def _returns(orders: dict[int, tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """The number of epochs after which orders come again, to the end, and the epoch from which they
    do.
    """
    for period in PERIODS:
        epochs = [epoch for epoch in sorted(orders, reverse=True) if epoch - period in orders]
        tail = list(takewhile(lambda e, p=period: orders[e] == orders[e - p], epochs))  # type: ignore[misc]
        if len(tail) >= RETURNS:
            yield period, tail[-1]


def _before(period: int) -> str:
    return "the epoch before" if period == 1 else f"{period} epochs before"


def judge_order_repeats(first: History, again: History) -> tuple[Violation, ...]:
    """A second component, started at a later epoch, has the order the first one had there."""
    orders, anew = _orders(first), _orders(again)
    epochs = {record.epoch for record in again if isinstance(record, EpochEnd | Sample)}
    known = {(rank, epoch) for rank, epoch in orders if epoch in epochs}
    return (
        *([] if epochs else [Violation("no epoch was started anew")]),
        *(
            Violation(
                f"rank {rank} delivered {_start(orders.get((rank, epoch), ()))}, but started "
                f"anew at this epoch {_start(anew.get((rank, epoch), ()))}",
                epoch,
            )
            for rank, epoch in sorted(known | anew.keys())
            if orders.get((rank, epoch)) != anew.get((rank, epoch))
        ),
    )


def judge_streams(history: History) -> tuple[Violation, ...]:
    """No two (rank, worker, epoch) draw the same random numbers from the same generator."""
    owners: defaultdict[tuple[str, tuple[float, ...]], list[Draws]] = defaultdict(list)
    for draws in history:
        if isinstance(draws, Draws):
            owners[draws.generator, draws.values].append(draws)
    return tuple(
        _same_stream(first, second)
        for same in owners.values()
        for first, second in combinations(same, 2)
    )


def _same_stream(first: Draws, second: Draws) -> Violation:
    shown = ", ".join(f"{value:.4g}" for value in first.values[:3])
    streams = f"{_stream(first)} as for {_stream(second)}"
    return Violation(f"{first.generator} draws {shown} for {streams}")


def judge_drawn(history: History) -> tuple[Violation, ...]:
    """No two (rank, worker, epoch) draw the same numbers; the longer stream is cut.

    Streams of fewer than three numbers are not judged, nor those that may agree by chance: two
    tosses of three coins are the same one time in eight.
    """
    streams = [draws for draws in history if isinstance(draws, Draws)]
    pairs = [
        (first, second, first.values[:length])
        for first, second in combinations(streams, 2)
        for length in [min(len(first.values), len(second.values))]
        if length >= LEAST_DRAWS
    ]
    return tuple(
        _same_stream(first, second)
        for first, second, values in pairs
        if values == second.values[: len(values)] and _chance(values) * len(pairs) < UNLIKELY
    )


def _chance(values: Sequence[float]) -> float:
    """The probability that another stream is the same, from how often values repeat in this one."""
    every = len(values) * (len(values) - 1) / 2
    again = sum(number * (number - 1) / 2 for number in Counter(values).values())
    return float(((again + 1) / (every + 1)) ** len(values))


def judge_one_draw(history: History, surplus: int, missing: int) -> tuple[Violation, ...]:
    """The ranks' shares make up one draw of the wrapped sampler, or all raise the same type.

    ``surplus`` items may be repeated or be those of a further draw, ``missing`` ones left out.
    """
    delivered = [share for share in history if isinstance(share, Delivered)]
    refused = [refusal for refusal in history if isinstance(refusal, Refused)]
    if refused:
        return _refusals(refused, [share.rank for share in delivered])
    orders: defaultdict[int, list[Items]] = defaultdict(list)
    for drawn in (record for record in history if isinstance(record, Drawn)):
        orders[drawn.rank].append(drawn.items)
    if not orders:
        return (Violation("the wrapper never iterated over the sampler"),)
    different = {tuple(draws): rank for rank, draws in orders.items()}
    if len(different) > 1:
        ranks = ranks_in_words(sorted(different.values()))
        return (Violation(f"{len(different)} different global orders were drawn, by {ranks}"),)
    (draws,) = different
    got = Counter(item for share in delivered for item in share.items)
    # A wrapper may draw again, to fill up or to count; it has delivered one of the draws.
    filling = frozenset(chain.from_iterable(draws))
    found = (tuple(_differences(Counter(d), got, surplus, missing, filling)) for d in draws)
    return min(found, key=len)


def _by_epoch(history: History) -> Iterator[tuple[int, list[Sample]]]:
    """Samples by epoch; an epoch in which no rank delivered anything counts too."""
    epochs = sorted({end.epoch for end in history if isinstance(end, EpochEnd)})
    for epoch in epochs:
        yield epoch, [s for s in history if isinstance(s, Sample) and s.epoch == epoch]


def _foreign(epoch: int, samples: Sequence[Sample], size: int) -> Iterator[Violation]:
    owners = _owners(sample for sample in samples if not 0 <= sample.index < size)
    for index in sorted(owners):
        yield Violation(f"index {index} is not in the data set, {_delivered(owners[index])}", epoch)


def _owners(samples: Iterable[Sample]) -> dict[int, list[Sample]]:
    owners: defaultdict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        owners[sample.index].append(sample)
    return owners


def _coverage_of(
    epoch: int,
    samples: Sequence[Sample],
    members: Sequence[int],
    allowance: Allowance = NOTHING_MORE,
    copies: int = 1,
    *,
    partly: bool = False,
) -> Iterator[Violation]:
    """Each of ``members`` comes ``copies`` times; ``partly``: at most."""
    own = frozenset(members)
    owners = _owners(sample for sample in samples if sample.index in own)
    times = {index: len(owners.get(index, ())) for index in members}
    lost = {index: copies - number for index, number in times.items() if number < copies}
    more = {index: number - copies for index, number in times.items() if number > copies}
    declared = f", {copies} declared" if copies > 1 else ""
    if sum(lost.values()) > allowance.missing and not partly:
        for index in lost:
            by = (
                f"{_delivered(owners[index])}{declared}"
                if index in owners
                else "delivered by no rank"
            )
            yield Violation(f"index {index} {by}{_allowed(allowance.missing)}", epoch)
    if sum(more.values()) > allowance.surplus:
        for index in sorted(more):
            text = f"index {index} {_delivered(owners[index])}{declared}"
            yield Violation(f"{text}{_allowed(allowance.surplus)}", epoch)


def _another_total(
    epoch: int, number: int, declared: int, allowance: Allowance
) -> Iterator[Violation]:
    if not declared - allowance.missing <= number <= declared + allowance.surplus:
        yield Violation(f"{number} samples delivered by all ranks together, not {declared}", epoch)


def _same_draws(epoch: int, samples: Sequence[Sample]) -> Iterator[Violation]:
    """The samples of each rank, or of each worker if samples name theirs."""
    streams: defaultdict[tuple[int, int | None], list[int]] = defaultdict(list)
    for sample in samples:
        streams[sample.rank, sample.worker].append(sample.index)
    for (rank, worker), (other, second) in equal_draws(streams):
        whose = f"rank {rank}{_worker(worker)} and rank {other}{_worker(second)}"
        yield Violation(f"{whose} draw the same: {_start(streams[rank, worker])}", epoch)


def _worker(worker: int | None) -> str:
    return "" if worker in (None, -1) else f" worker {worker}"


def _uneven_passes(
    history: History, size: int, world_size: int, copies: int, allowance: Allowance
) -> Iterator[Violation]:
    steps: dict[int, defaultdict[int, list[int]]]
    steps = {rank: defaultdict(list) for rank in range(world_size)}
    for sample in history:
        if isinstance(sample, Sample):
            steps[sample.rank][sample.step].append(sample.index)
    batches = {rank: list(own.values()) for rank, own in steps.items()}
    text = uneven_passes(batches, size, copies, allowance)
    if text:
        yield Violation(text)


def _delivered(samples: Sequence[Sample]) -> str:
    ranks = [sample.rank for sample in samples]
    workers = [sample.worker for sample in samples]
    if any(worker not in (None, -1) for worker in workers):
        pairs = [f"rank {r} worker {w}" for r, w in zip(ranks, workers, strict=True)]
        return f"delivered by {' and '.join(pairs)}"
    if len(set(ranks)) == 1 and len(ranks) > 1:
        return f"delivered {len(ranks)} times by rank {ranks[0]}"
    return f"delivered by {ranks_in_words(ranks)}"


def _allowed(number: int) -> str:
    return f" ({number} allowed)" if number else ""


def _unequal(counts: dict[int, int]) -> str:
    few, many = min(counts.values()), max(counts.values())
    with_few = [rank for rank, count in sorted(counts.items()) if count == few]
    with_many = [rank for rank, count in sorted(counts.items()) if count == many]
    return f"batches: {few} on {ranks_in_words(with_few)}, {many} on {ranks_in_words(with_many)}"


def _orders(history: History) -> dict[tuple[int, int], tuple[int, ...]]:
    """Indices by (rank, epoch), in the order of delivery."""
    orders: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for sample in history:
        if isinstance(sample, Sample):
            orders[sample.rank, sample.epoch].append(sample.index)
    return {key: tuple(order) for key, order in orders.items()}


def _start(order: Sequence[int]) -> str:
    shown = ", ".join(map(str, order[:SHOWN]))
    return f"{shown}, ..." if len(order) > SHOWN else shown or "nothing"


def _stream(draws: Draws) -> str:
    worker = "" if draws.worker == -1 else f" worker {draws.worker}"
    return f"rank {draws.rank}{worker} in epoch {draws.epoch}"


def _refusals(refused: Sequence[Refused], others: Sequence[int]) -> tuple[Violation, ...]:
    errors = {refusal.error for refusal in refused}
    if others:
        return (
            Violation(
                f"{ranks_in_words([r.rank for r in refused])} refused with {refused[0].error}, "
                f"{ranks_in_words(others)} did not"
            ),
        )
    if len(errors) > 1:
        return (Violation(f"ranks refused differently: {', '.join(sorted(errors))}"),)
    return ()


def _differences(
    expected: Counter[tuple[int, ...]],
    got: Counter[tuple[int, ...]],
    surplus: int,
    missing: int,
    filling: AbstractSet[tuple[int, ...]],
) -> Iterator[Violation]:
    """The surplus may consist of the items ``filling``."""
    too_many, too_few = got - expected, expected - got
    wrong: list[tuple[int, ...]] = sorted(too_many.keys() - filling)
    if too_many.total() > surplus:
        wrong += sorted(too_many.keys() & filling)
    if too_few.total() > missing:
        wrong += sorted(too_few)
    for item in wrong:
        yield Violation(f"{_item(item)} delivered {got[item]} times, drawn {expected[item]} times")


def _item(item: tuple[int, ...]) -> str:
    return f"index {item[0]}" if len(item) == 1 else f"batch {list(item)}"
