"""All ranks together: what their detectors have sent becomes findings. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from pytest_ddp.extensions.portable import orders, reliance
from pytest_ddp.extensions.portable.differences import DIFFERENCES, finding_of
from pytest_ddp.extensions.portable.finding import FindingKind, PortabilityFinding, merged
from pytest_ddp.extensions.portable.first_batches import FirstOperation, partial_batches
from pytest_ddp.extensions.portable.point_to_point import Message, mismatches
from pytest_ddp.outcome.outcome import ranks_text

Judge: TypeAlias = Callable[[Mapping[int, Any]], Iterable[PortabilityFinding]]
"""From what the detector of each rank has sent; ranks that have sent nothing are missing."""


def of_single_ranks(sent: Mapping[int, Any]) -> list[PortabilityFinding]:
    """Merge the findings of detectors that need one rank alone."""
    return merged({rank: map(PortabilityFinding.from_json, each) for rank, each in sent.items()})


def judge_orders(sent: Mapping[int, Any]) -> Iterable[PortabilityFinding]:
    """Order between groups."""
    found: dict[tuple[tuple[str, str], ...], None] = {}
    for one in orders.inversions({rank: orders.read(each) for rank, each in sent.items()}):
        key = tuple((issue.name, issue.site) for issue in (*one.first, *one.second))
        if key in found:
            continue
        found[key] = None
        yield _order_finding(one)


def _order_finding(one: orders.Inversion) -> PortabilityFinding:
    (a, b), (c, d) = one.first, one.second
    left, right = one.ranks
    return PortabilityFinding(
        FindingKind.GROUP_ORDER,
        f"ranks {left} and {right} issue {a.name} and {b.name} in opposite orders",
        (
            (f"rank {left} first: {a.name}", a.site),
            (f"rank {left} then:  {b.name}", b.site),
            (f"rank {right} first: {c.name}", c.site),
            (f"rank {right} then:  {d.name}", d.site),
        ),
        "On NCCL each of them may keep the other one from running, or from making its "
        "communicator: the ranks may wait for each other for ever.",
        "issue them in the same order on all ranks.",
    )


def judge_messages(sent: Mapping[int, Any]) -> Iterable[PortabilityFinding]:
    """Messages whose two ends go together on gloo alone."""
    rows = {row.name: row for row in DIFFERENCES}
    ranks = {rank: [Message(*one) for one in each] for rank, each in sent.items()}
    found: dict[tuple[Any, ...], None] = {}
    for one in mismatches(ranks):
        key = one.row, *(message.site for message in one.messages)
        if key not in found:
            found[key] = None
            lines = tuple(
                (f"rank {rank}: {message.name}, {message.nbytes} bytes", message.site)
                for rank, message in zip(one.ranks, one.messages, strict=True)
            )
            yield finding_of(rows[one.row], rows[one.row].what, lines)


def judge_first_operations(sent: Mapping[int, Any]) -> Iterable[PortabilityFinding]:
    """Batches that are the first collective of a group on some of its members."""
    row = next(row for row in DIFFERENCES if row.name == "first batch")
    ranks = {rank: [FirstOperation(*one) for one in each] for rank, each in sent.items()}
    for one in partial_batches(ranks):
        ends: dict[tuple[str, str], list[int]] = {}
        for rank, first in one.first.items():
            nothing = f"nothing on {one.label}", ""
            end = nothing if first is None else (f"first {first.name}", first.site)
            ends.setdefault(end, []).append(rank)
        lines = tuple((f"{ranks_text(of)}: {words}", site) for (words, site), of in ends.items())
        yield finding_of(row, row.what, lines)


def judge_waits(sent: Mapping[int, Any]) -> Iterable[PortabilityFinding]:
    """A collective that ends before all members have begun it, which the test needs."""
    ring = reliance.cycle({rank: reliance.read(rank, each) for rank, each in sent.items()})
    if not ring:
        return
    first, second = ring[0], ring[1]
    lines = []
    for one, before in zip(ring, ring[-1:] + ring[:-1], strict=True):
        lines.append((f"rank {one.rank} first: {one.waits.name}", one.waits.site))
        lines.append((f"rank {one.rank} then:  {before.issues.name}", before.issues.site))
    yield PortabilityFinding(
        FindingKind.RELIANCE,
        f"rank {first.rank} relies on {first.waits.name} to end before rank {second.rank} begins "
        "it",
        tuple(lines),
        "On gloo a rank goes on as soon as it has its own part of a broadcast, scatter or gather. "
        "On NCCL a collective may need all members before it ends on any: then these ranks wait "
        "for each other for ever.",
        f"let rank {second.rank} begin it before it waits for what rank {first.rank} does after "
        "it.",
    )


JUDGES: dict[str, Judge] = {
    "orders": judge_orders,
    "handles": of_single_ranks,
    "buffers": of_single_ranks,
    "differences": of_single_ranks,
    "messages": judge_messages,
    "first operations": judge_first_operations,
    "waits": judge_waits,
}
"""The judge of each detector, by the detector's name."""


def findings(sent: Mapping[int, Mapping[str, Any]]) -> list[PortabilityFinding]:
    """What all judges find, from what each rank has sent."""
    found = {
        name: list(judge({rank: each[name] for rank, each in sent.items() if name in each}))
        for name, judge in JUDGES.items()
    }
    # Ranks that rely on a collective have most often issued two operations in opposite orders.
    shown = {line for finding in found["waits"] for line in finding.lines}
    found["orders"] = [one for one in found["orders"] if not shown.issuperset(one.lines)]
    return [finding for each in found.values() for finding in each]
