"""Judges of the shared cache's guarantees: pure functions from what ranks saw to violations."""

from __future__ import annotations

from collections import defaultdict

from ddp_conformance.cache_history import CachedTensor, DeviceUse, Opened, Produced
from ddp_conformance.history import History, Refused
from ddp_conformance.verdict import Violation, ranks_in_words


def judge_placement(history: History) -> tuple[Violation, ...]:
    """Every tensor is on the CPU, carries no gradient and is the same memory on all ranks."""
    held = [r for r in history if isinstance(r, CachedTensor) and r.when == "opened"]
    return (
        *(Violation(text) for tensor in held for text in _misplaced(tensor)),
        *(Violation(text) for text in _copies(held)),
        *([] if held else [Violation("the cache shows no tensor")]),
    )


def judge_refusal(history: History) -> tuple[Violation, ...]:
    """Files with a tensor of another device are refused by all ranks, or put right."""
    refusing = [record.rank for record in history if isinstance(record, Refused)]
    opening = sorted({record.rank for record in history if isinstance(record, Opened)})
    if refusing and opening:
        text = f"{ranks_in_words(refusing)} refused the file, {ranks_in_words(opening)} opened it"
        return (Violation(text),)
    return () if refusing else judge_placement(history)


def judge_unchanged(history: History) -> tuple[Violation, ...]:
    """No tensor is another one after all ranks and workers have read every sample."""
    before = _digests(history, "opened")
    return tuple(
        Violation(f"key {key!r}: rank {rank} has other values after the epoch than before it")
        for (rank, key), digest in sorted(_digests(history, "read").items())
        if digest != before.get((rank, key))
    )


def judge_built_once(history: History) -> tuple[Violation, ...]:
    """One rank produced the content, and each rank had all of it when its cache was open."""
    produced = [record for record in history if isinstance(record, Produced)]
    if len(produced) != 1:
        by = f", by {ranks_in_words([p.rank for p in produced])}" if produced else ""
        return (Violation(f"the content was produced {len(produced)} times{by}"),)
    whole = produced[0]
    wanted = dict(whole.digests)
    return (
        *(
            Violation(f"rank {r.rank} has {r.count} samples, {whole.count} were produced")
            for r in history
            if isinstance(r, Opened) and r.count != whole.count
        ),
        *(
            Violation(f"key {key!r}: rank {rank} opened other values than were produced")
            for (rank, key), digest in sorted(_digests(history, "opened").items())
            if digest != wanted.get(key, digest)
        ),
        *_different(_digests(history, "opened"), wanted),
    )


def judge_device_use(history: History) -> tuple[Violation, ...]:
    """Neither a process that forks workers nor a worker has initialised CUDA."""
    found = {(r.rank, r.worker) for r in history if isinstance(r, DeviceUse) and r.initialised}
    return tuple(
        Violation(
            f"rank {rank} had CUDA initialised when it forked a worker"
            if worker < 0
            else f"worker {worker} of rank {rank} has CUDA initialised"
        )
        for rank, worker in sorted(found)
    )


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


def _digests(history: History, when: str) -> dict[tuple[int, str], str]:
    return {
        (r.rank, r.key): r.digest for r in history if isinstance(r, CachedTensor) and r.when == when
    }


def _different(
    digests: dict[tuple[int, str], str], produced: dict[str, str]
) -> tuple[Violation, ...]:
    """Keys that are the cache's own, which can only be compared among ranks."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for (_, key), digest in digests.items():
        if key not in produced:
            found[key].add(digest)
    return tuple(
        Violation(f"key {key!r}: the ranks opened different values")
        for key, values in sorted(found.items())
        if len(values) > 1
    )
