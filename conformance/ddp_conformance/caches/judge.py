"""Judges of the shared cache's guarantees: pure functions from what ranks saw to violations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from ddp_conformance.caches.history import CachedTensor, CacheOpen, DeviceUse, Produced
from ddp_conformance.framework.history import Failed, History, Refused
from ddp_conformance.framework.verdict import Violation, ranks_in_words


def judge_placement(history: History) -> tuple[Violation, ...]:
    """Every tensor is on the CPU, carries no gradient and is the same memory on all ranks."""
    held = [r for r in history if isinstance(r, CachedTensor) and r.when == "opened"]
    return (
        *(Violation(text) for tensor in held for text in _misplaced(tensor)),
        *(Violation(text) for text in _copies(held)),
        *_lacking(history, held),
        *([] if held else [Violation("the cache shows no tensor")]),
    )


def judge_refusal(history: History) -> tuple[Violation, ...]:
    """Files with a tensor of another device are refused by all ranks, or put right."""
    refused = any(isinstance(record, Refused) for record in history)
    return _refused_by_some(history, "the file") if refused else judge_placement(history)


def _refused_by_some(history: History, what: str) -> tuple[Violation, ...]:
    refusing = [record.rank for record in history if isinstance(record, Refused)]
    opening = sorted(_opening(history))
    if not refusing or not opening:
        return ()
    words = ranks_in_words(refusing), ranks_in_words(opening)
    return (Violation(f"{words[0]} refused {what}, {words[1]} opened it"),)


def judge_unchanged(history: History) -> tuple[Violation, ...]:
    """Every tensor is the same before and after all ranks and workers read every sample."""
    before, after = _digests(history, "opened"), _digests(history, "read")
    return (
        *(
            Violation(f"key {key!r}: rank {rank} {_change(before, after, (rank, key))}")
            for rank, key in sorted(before.keys() | after.keys())
            if before.get((rank, key)) != after.get((rank, key))
        ),
        *([] if before else [Violation("the cache shows no tensor")]),
    )


Digests: TypeAlias = dict[tuple[int, str], str]


def _change(before: Digests, after: Digests, place: tuple[int, str]) -> str:
    if place in before and place in after:
        return "has other values after the epoch than before it"
    return f"has it only {'before' if place in before else 'after'} the epoch"


def judge_built_once(history: History) -> tuple[Violation, ...]:
    """One rank produced the content, and each rank had all of it when its cache was open."""
    produced = [record for record in history if isinstance(record, Produced)]
    if len(produced) != 1:
        by = f", by {ranks_in_words([p.rank for p in produced])}" if produced else ""
        return (Violation(f"the content was produced {len(produced)} times{by}"),)
    whole = produced[0]
    wanted = dict(whole.digests)
    held = [r for r in history if isinstance(r, CachedTensor) and r.when == "opened"]
    return (
        *(
            Violation(f"rank {r.rank} has {r.count} samples, {whole.count} were produced")
            for r in history
            if isinstance(r, CacheOpen) and r.count != whole.count
        ),
        *(
            Violation(f"key {key!r}: rank {rank} opened other values than were produced")
            for (rank, key), digest in sorted(_digests(history, "opened").items())
            if digest != wanted.get(key, digest)
        ),
        *_different(_digests(history, "opened"), wanted),
        *_lacking(history, held),
        *([] if _opening(history) else [Violation("no rank opened what was produced")]),
    )


def judge_after_kill(history: History, undisturbed: Sequence[History]) -> tuple[Violation, ...]:
    """All ranks refuse the cache, or it has the content that it has in sessions without a kill.

    Content that differs between those, such as random numbers, is not compared.
    """
    counts = {r.count for one in undisturbed for r in one if isinstance(r, CacheOpen)}
    known = set.intersection(
        *({(r.key, r.digest) for r in opened} for one in undisturbed for opened in _by_rank(one))
    )
    held = _digests(history, "opened")
    return (
        *_refused_by_some(history, "the cache"),
        *(
            Violation(f"rank {r.rank} has {r.count} samples, {min(counts)} without the kill")
            for r in history
            if isinstance(r, CacheOpen) and len(counts) == 1 and r.count not in counts
        ),
        *(
            Violation(f"key {key!r}: rank {rank} opened {_instead(held.get((rank, key)))}")
            for rank in sorted(_opening(history))
            for key, digest in sorted(known)
            if held.get((rank, key)) != digest
        ),
    )


def _by_rank(history: History) -> list[list[CachedTensor]]:
    """The tensors of each rank that opened the cache."""
    held = [r for r in history if isinstance(r, CachedTensor) and r.when == "opened"]
    return [[r for r in held if r.rank == rank] for rank in sorted(_opening(history))]


def _instead(digest: str | None) -> str:
    return "none" if digest is None else "other values than without the kill"


def judge_who_raised(history: History) -> tuple[Violation, ...]:
    """No rank raises where its cache is opened."""
    return tuple(
        Violation(f"rank {record.rank} cannot open the cache: {record.error}")
        for record in history
        if isinstance(record, Failed)
    )


def judge_built_in_each(history: History, machines: Sequence[range]) -> tuple[Violation, ...]:
    """MEM-03 for the ranks of each machine.

    A machine may also get the content from another one, by a collective.
    """
    produced = [record for record in history if isinstance(record, Produced)]
    found: list[Violation] = []
    for ranks in machines:
        here = [record for record in history if record.rank in ranks]
        if not any(isinstance(record, Produced) for record in here):
            here += produced[:1]
        if not any(isinstance(record, Failed) for record in here):
            found += judge_built_once(here)
    return tuple(found)


def judge_device_use(history: History) -> tuple[Violation, ...]:
    """No worker initialises CUDA; and some worker of each rank reads."""
    uses = [record for record in history if isinstance(record, DeviceUse)]
    found = {(use.rank, use.worker) for use in uses if use.initialised}
    unread = _opening(history) - {use.rank for use in uses}
    return (
        *(
            Violation(f"worker {worker} of rank {rank} initialises CUDA")
            for rank, worker in sorted(found)
        ),
        *(Violation(f"no worker of rank {rank} read a sample") for rank in sorted(unread)),
        *([] if uses or unread else [Violation("no worker read a sample")]),
    )


def _opening(history: History) -> set[int]:
    return {record.rank for record in history if isinstance(record, CacheOpen | CachedTensor)}


def _lacking(history: History, held: list[CachedTensor]) -> Iterator[Violation]:
    """Keys that not all ranks have."""
    ranks = _opening(history)
    for key in sorted({tensor.key for tensor in held}):
        without = ranks - {tensor.rank for tensor in held if tensor.key == key}
        if without:
            yield Violation(f"key {key!r}: {ranks_in_words(sorted(without))} opened none")


def _misplaced(tensor: CachedTensor) -> list[str]:
    where = f"key {tensor.key!r} on rank {tensor.rank}"
    if tensor.device != "cpu":
        return [f"{where} is on {tensor.device}, which cannot be shared"]
    return [
        *([] if tensor.detached else [f"{where} carries a gradient"]),
        *([] if tensor.memory else [f"{where} lies in memory of its process alone"]),
    ]


def _copies(held: list[CachedTensor]) -> list[str]:
    ranks: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for tensor in held:
        if tensor.memory:
            ranks[tensor.key].setdefault(tensor.memory, tensor.rank)
    return [
        f"key {key!r}: {ranks_in_words(sorted(owners.values()))} have a copy each"
        for key, owners in sorted(ranks.items())
        if len(owners) > 1
    ]


def _digests(history: History, when: str) -> Digests:
    return {
        (r.rank, r.key): r.digest for r in history if isinstance(r, CachedTensor) and r.when == when
    }


def _different(digests: Digests, produced: dict[str, str]) -> Iterator[Violation]:
    """Keys that are the cache's own, which can only be compared among ranks."""
    owners: defaultdict[str, defaultdict[str, list[int]]]
    owners = defaultdict(lambda: defaultdict(list))
    for (rank, key), digest in sorted(digests.items()):
        if key not in produced:
            owners[key][digest].append(rank)
    for key, ranks in owners.items():
        if len(ranks) > 1:
            sides = " and ".join(map(ranks_in_words, ranks.values()))
            yield Violation(f"key {key!r}: {sides} opened different values")
