"""Properties of the caches' judges: all that is legal passes, and any single breach is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddp_conformance.caches import judge
from ddp_conformance.caches.history import CachedTensor, CacheOpen, DeviceUse, Produced
from ddp_conformance.framework.history import Refused
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import (
    any_record,
    changed,
    digests,
    quick,
    several,
    texts,
    without,
    words,
    world_sizes,
)


@dataclass(frozen=True)
class Reading:
    """A cache that was opened and read by all ranks."""

    world_size: int
    history: list[Any]


@st.composite
def readings(draw: st.DrawFn, sizes: st.SearchStrategy[int] = world_sizes) -> Reading:
    """Keys of what was produced, and of the cache's own; any number of workers on each rank."""
    world_size = draw(sizes)
    contents = draw(st.dictionaries(words, st.tuples(digests, st.booleans()), min_size=1))
    memory = {key: f"8:1 {inode} 0" for inode, key in enumerate(contents)}
    count = draw(st.integers(0, 9))
    produced = [(key, digest) for key, (digest, own) in contents.items() if not own]
    builder = draw(st.integers(0, world_size - 1))
    history: list[Any] = [Produced(builder, count, tuple(produced))]
    for rank in draw(st.permutations(range(world_size))):
        history.append(CacheOpen(rank, count))
        for when in ("opened", "read"):
            history += [
                CachedTensor(rank, key, when, "cpu", True, memory[key], digest)
                for key, (digest, _) in contents.items()
            ]
        workers = range(draw(st.integers(1, 3)))
        history += [DeviceUse(rank, worker, False) for worker in workers]
    return Reading(world_size, history)


def found_by_all(history: Sequence[Any]) -> dict[str, list[str]]:
    """The violations that each judge finds, by its name; judges that find none are left out."""
    found = {
        "placement": judge.judge_placement(history),
        "unchanged": judge.judge_unchanged(history),
        "built": judge.judge_built_once(history),
        "devices": judge.judge_device_use(history),
    }
    return {name: texts(violations) for name, violations in found.items() if violations}


def opened(tensor: CachedTensor) -> bool:
    return tensor.when == "opened"


@quick
@given(readings())
def test_legal_readings_pass(reading: Reading) -> None:
    assert found_by_all(reading.history) == {}
    assert judge.judge_refusal(reading.history) == ()


@quick
@given(world_sizes)
def test_caches_that_show_nothing_are_no_pass(world_size: int) -> None:
    history = [CacheOpen(rank, 3) for rank in range(world_size)]
    found = found_by_all(history)
    assert found.keys() == {"placement", "unchanged", "built", "devices"}
    unread = [f"no worker of rank {rank} read a sample" for rank in range(world_size)]
    assert found["devices"] == unread
    assert found_by_all([]).keys() == found.keys()


# ---------------------------------------------------------------- MEM-01


@quick
@given(readings(), st.data())
def test_any_misplaced_tensor_is_named(reading: Reading, data: st.DataObject) -> None:
    tensor = any_record(data, reading.history, CachedTensor, opened)
    where = f"key {tensor.key!r} on rank {tensor.rank} "
    for changes, words_of in (
        ({"device": "cuda:0", "memory": "", "digest": ""}, "is on cuda:0, which cannot be shared"),
        ({"detached": False}, "carries a gradient"),
        ({"memory": ""}, "lies in memory of its process alone"),
    ):
        history = changed(reading.history, tensor, **changes)
        assert found_by_all(history)["placement"] == [where + words_of]
        assert texts(judge.judge_refusal(history)) == [where + words_of]


@quick
@given(readings(several), st.data())
def test_any_copy_is_named(reading: Reading, data: st.DataObject) -> None:
    tensor = any_record(data, reading.history, CachedTensor, opened)
    found = found_by_all(changed(reading.history, tensor, memory="8:1 99 0"))
    (text,) = found.pop("placement")
    assert not found
    assert text.startswith(f"key {tensor.key!r}: ranks ")
    assert f" {tensor.rank} " in text.replace(",", " ")
    assert text.endswith(" have a copy each")


@quick
@given(readings(several), st.data())
def test_any_rank_that_refuses_alone_is_named(reading: Reading, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, reading.world_size - 1))
    own = [record for record in reading.history if record.rank == rank]
    history = [*without(reading.history, *own), Refused(rank, "CacheError")]
    (text,) = texts(judge.judge_refusal(history))
    assert text.startswith(f"rank {rank} refused the file, rank")
    refused = [Refused(rank, "CacheError") for rank in range(reading.world_size)]
    assert judge.judge_refusal(refused) == ()


@quick
@given(readings(several), st.data())
def test_any_key_that_one_rank_lacks_is_named(reading: Reading, data: st.DataObject) -> None:
    tensor = any_record(data, reading.history, CachedTensor, opened)
    found = found_by_all(without(reading.history, tensor))
    named = [f"key {tensor.key!r}: rank {tensor.rank} opened none"]
    assert found.pop("placement") == named
    assert found.pop("built") == named
    assert found == {
        "unchanged": [f"key {tensor.key!r}: rank {tensor.rank} has it only after the epoch"]
    }


# ---------------------------------------------------------------- MEM-02


@quick
@given(readings(), st.data())
def test_any_change_is_named(reading: Reading, data: st.DataObject) -> None:
    tensor = any_record(data, reading.history, CachedTensor, lambda t: t.when == "read")
    where = f"key {tensor.key!r}: rank {tensor.rank} has "
    assert found_by_all(changed(reading.history, tensor, digest="another")) == {
        "unchanged": [f"{where}other values after the epoch than before it"]
    }
    assert found_by_all(without(reading.history, tensor)) == {
        "unchanged": [f"{where}it only before the epoch"]
    }


# ---------------------------------------------------------------- MEM-03


@quick
@given(readings(), st.data())
def test_any_number_of_builds_but_one_is_named(reading: Reading, data: st.DataObject) -> None:
    build = any_record(data, reading.history, Produced)
    rank = data.draw(st.integers(0, reading.world_size - 1))
    none = "the content was produced 0 times"
    assert found_by_all(without(reading.history, build)) == {"built": [none]}
    (text,) = found_by_all([*reading.history, Produced(rank, build.count, ())])["built"]
    assert text == f"the content was produced 2 times, by ranks {build.rank} and {rank}"


@quick
@given(readings(), st.data())
def test_any_rank_that_opens_something_else_is_named(reading: Reading, data: st.DataObject) -> None:
    count = any_record(data, reading.history, CacheOpen)
    found = found_by_all(changed(reading.history, count, count=count.count + 1))
    (text,) = found["built"]
    assert text.startswith(f"rank {count.rank} has {count.count + 1} samples, {count.count} were ")
    tensor = any_record(data, reading.history, CachedTensor, opened)
    produced = dict(any_record(data, reading.history, Produced).digests)
    named = found_by_all(changed(reading.history, tensor, digest="another")).get("built", [])
    if tensor.key in produced:
        assert named == [
            f"key {tensor.key!r}: rank {tensor.rank} opened other values than were produced"
        ]
    elif reading.world_size > 1:
        (text,) = named
        assert text.startswith(f"key {tensor.key!r}: ")
        assert f"rank {tensor.rank} " in text
        assert text.endswith(" opened different values")


# ---------------------------------------------------------------- MEM-04


@quick
@given(readings(), st.data())
def test_any_worker_with_cuda_is_named(reading: Reading, data: st.DataObject) -> None:
    use = any_record(data, reading.history, DeviceUse)
    found = found_by_all(changed(reading.history, use, initialised=True))
    (text,) = found.pop("devices")
    assert not found
    assert text == f"worker {use.worker} of rank {use.rank} initialises CUDA"


@quick
@given(readings(), st.data())
def test_any_rank_whose_workers_read_nothing_is_named(
    reading: Reading, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, reading.world_size - 1))
    own = [r for r in reading.history if isinstance(r, DeviceUse) and r.rank == rank]
    found = found_by_all(without(reading.history, *own))
    assert found == {"devices": [f"no worker of rank {rank} read a sample"]}


# ---------------------------------------------------------------- MEM-07


@quick
@given(readings())
def test_what_undisturbed_sessions_hold_passes(reading: Reading) -> None:
    assert judge.judge_after_kill(reading.history, [reading.history] * 2) == ()


@quick
@given(readings(), digests, st.data())
def test_any_content_that_a_kill_has_changed_is_named(
    reading: Reading, digest: str, data: st.DataObject
) -> None:
    tensor = any_record(data, reading.history, CachedTensor, opened)
    known, where = [reading.history] * 2, f"key {tensor.key!r}: rank {tensor.rank} opened"
    if digest != tensor.digest:
        spoiled = changed(reading.history, tensor, digest=digest)
        named = [f"{where} other values than without the kill"]
        assert texts(judge.judge_after_kill(spoiled, known)) == named
        assert judge.judge_after_kill(spoiled, [reading.history, spoiled]) == ()
    lacking = without(reading.history, tensor)
    assert texts(judge.judge_after_kill(lacking, known)) == [f"{where} none"]


@quick
@given(readings(), st.data())
def test_any_count_that_a_kill_has_changed_is_named(reading: Reading, data: st.DataObject) -> None:
    cache = any_record(data, reading.history, CacheOpen)
    short = changed(reading.history, cache, count=cache.count + 1)
    (text,) = texts(judge.judge_after_kill(short, [reading.history]))
    assert text.startswith(f"rank {cache.rank} has {cache.count + 1} samples, {cache.count} ")
