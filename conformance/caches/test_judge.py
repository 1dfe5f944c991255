"""The judges of the cache's guarantees on hand-made histories."""

from __future__ import annotations

from dataclasses import replace

from ddp_conformance.caches import judge
from ddp_conformance.caches.history import CachedTensor, CacheOpen, DeviceUse, Produced
from ddp_conformance.framework.history import Failed, Refused

GOOD = CachedTensor(0, "x", "opened", "cpu", True, "8:1 5 0", "aa")
OTHER = replace(GOOD, rank=1)
BUILD = Produced(0, 7, (("x", "aa"),))


def texts(violations: object) -> list[str]:
    assert isinstance(violations, tuple)
    return [str(violation) for violation in violations]


def test_one_memory_on_the_cpu_passes() -> None:
    assert judge.judge_placement([GOOD, OTHER]) == ()


def test_a_tensor_in_the_wrong_place_is_named() -> None:
    history = [
        replace(GOOD, device="meta"),
        replace(OTHER, detached=False, memory=""),
    ]
    assert texts(judge.judge_placement(history)) == [
        "key 'x' on rank 0 is on meta, which cannot be shared",
        "key 'x' on rank 1 carries a gradient",
        "key 'x' on rank 1 lies in memory of its process alone",
    ]


def test_copies_are_named() -> None:
    history = [GOOD, replace(OTHER, memory="8:1 6 0")]
    assert texts(judge.judge_placement(history)) == ["key 'x': ranks 0 and 1 have a copy each"]


def test_a_cache_without_tensors_is_no_pass() -> None:
    assert texts(judge.judge_placement([])) == ["the cache shows no tensor"]


def test_a_file_is_refused_by_all_or_put_right() -> None:
    assert judge.judge_refusal([Refused(0, "CacheError"), Refused(1, "CacheError")]) == ()
    assert judge.judge_refusal([CacheOpen(0, 7), GOOD]) == ()
    assert texts(judge.judge_refusal([Refused(1, "CacheError"), CacheOpen(0, 7), GOOD])) == [
        "rank 1 refused the file, rank 0 opened it"
    ]
    assert len(judge.judge_refusal([CacheOpen(0, 7), replace(GOOD, device="cuda:0")])) == 1


def test_a_change_is_named_by_key_and_rank() -> None:
    after = [replace(GOOD, when="read"), replace(OTHER, when="read", digest="bb")]
    assert judge.judge_unchanged([GOOD, OTHER, after[0], replace(after[1], digest="aa")]) == ()
    assert texts(judge.judge_unchanged([GOOD, OTHER, *after])) == [
        "key 'x': rank 1 has other values after the epoch than before it"
    ]


def test_one_build_seen_whole_passes() -> None:
    assert judge.judge_built_once([BUILD, CacheOpen(0, 7), GOOD, CacheOpen(1, 7), OTHER]) == ()


def test_several_builds_and_none_are_named() -> None:
    assert texts(judge.judge_built_once([BUILD, replace(BUILD, rank=1)])) == [
        "the content was produced 2 times, by ranks 0 and 1"
    ]
    assert texts(judge.judge_built_once([])) == ["the content was produced 0 times"]


def test_early_readers_are_named() -> None:
    history = [BUILD, CacheOpen(0, 7), GOOD, CacheOpen(1, 6), replace(OTHER, digest="00")]
    assert texts(judge.judge_built_once(history)) == [
        "rank 1 has 6 samples, 7 were produced",
        "key 'x': rank 1 opened other values than were produced",
    ]


def test_keys_of_the_caches_own_must_agree() -> None:
    own = [replace(GOOD, key="code"), replace(OTHER, key="code", digest="cc")]
    assert texts(judge.judge_built_once([BUILD, *own])) == [
        "key 'code': rank 0 and rank 1 opened different values"
    ]


def test_initialised_cuda_is_named() -> None:
    uses = [DeviceUse(0, 0, True), DeviceUse(1, 0, False), DeviceUse(1, 1, True)]
    assert texts(judge.judge_device_use(uses)) == [
        "worker 0 of rank 0 initialises CUDA",
        "worker 1 of rank 1 initialises CUDA",
    ]


def test_a_key_that_one_rank_lacks_is_named() -> None:
    history = [BUILD, CacheOpen(0, 7), GOOD, CacheOpen(1, 7)]
    named = ["key 'x': rank 1 opened none"]
    assert texts(judge.judge_placement(history)) == named
    assert texts(judge.judge_built_once(history)) == named


def test_a_key_that_comes_or_goes_is_named() -> None:
    after = replace(GOOD, when="read")
    assert texts(judge.judge_unchanged([GOOD, OTHER, after])) == [
        "key 'x': rank 1 has it only before the epoch"
    ]
    assert texts(judge.judge_unchanged([GOOD, after, replace(after, key="y")])) == [
        "key 'y': rank 0 has it only after the epoch"
    ]


def test_what_nobody_opened_or_read_is_no_pass() -> None:
    assert texts(judge.judge_unchanged([])) == ["the cache shows no tensor"]
    assert texts(judge.judge_built_once([BUILD])) == ["no rank opened what was produced"]
    assert texts(judge.judge_device_use([])) == ["no worker read a sample"]
    history = [CacheOpen(0, 7), CacheOpen(1, 7), DeviceUse(0, 0, False)]
    assert texts(judge.judge_device_use(history)) == ["no worker of rank 1 read a sample"]


def test_one_build_on_each_machine_passes_and_so_does_what_came_from_elsewhere() -> None:
    seen = [CacheOpen(0, 7), GOOD, CacheOpen(1, 7), OTHER]
    each = [range(1), range(1, 2)]
    assert judge.judge_built_in_each([BUILD, replace(BUILD, rank=1), *seen], each) == ()
    assert judge.judge_built_in_each([BUILD, *seen], each) == ()


def test_two_builds_on_one_machine_and_a_machine_that_has_none_are_named() -> None:
    both = [BUILD, replace(BUILD, rank=1)]
    (text,) = texts(judge.judge_built_in_each(both, [range(2)]))
    assert text == "the content was produced 2 times, by ranks 0 and 1"
    empty = [BUILD, CacheOpen(0, 7), GOOD, CacheOpen(1, 7), replace(OTHER, digest="00")]
    (text,) = texts(judge.judge_built_in_each(empty, [range(1), range(1, 2)]))
    assert text == "key 'x': rank 1 opened other values than were produced"


def test_a_rank_that_raises_is_named_and_its_machine_is_not_judged() -> None:
    history = [BUILD, CacheOpen(0, 7), GOOD, Failed(1, "FileNotFoundError: x")]
    named = ["rank 1 cannot open the cache: FileNotFoundError: x"]
    assert texts(judge.judge_who_raised(history)) == named
    assert judge.judge_built_in_each(history, [range(1), range(1, 2)]) == ()


WHOLE = [CacheOpen(0, 7), GOOD, CacheOpen(1, 7), OTHER]


def test_after_a_kill_a_cache_is_whole_or_refused_by_all() -> None:
    known = [WHOLE, WHOLE]
    assert judge.judge_after_kill(WHOLE, known) == ()
    assert judge.judge_after_kill([Refused(0, "OSError"), Refused(1, "OSError")], known) == ()
    assert judge.judge_after_kill([Refused(0, "OSError")], known) == ()  # rank 1 waits for rank 0
    (text,) = texts(judge.judge_after_kill([*WHOLE[:2], Refused(1, "OSError")], known))
    assert text == "rank 1 refused the cache, rank 0 opened it"


def test_what_is_short_lacking_or_other_after_a_kill_is_named() -> None:
    history = [CacheOpen(0, 6), replace(GOOD, digest="00"), CacheOpen(1, 7)]
    assert texts(judge.judge_after_kill(history, [WHOLE])) == [
        "rank 0 has 6 samples, 7 without the kill",
        "key 'x': rank 0 opened other values than without the kill",
        "key 'x': rank 1 opened none",
    ]


def test_what_differs_without_a_kill_is_not_compared() -> None:
    drawn = [[CacheOpen(0, 7 + n), replace(GOOD, digest=str(n))] for n in range(3)]
    assert judge.judge_after_kill(drawn[2], drawn[:2]) == ()
    assert len(judge.judge_after_kill(drawn[2], drawn[:1])) == 2
    apart = [*WHOLE[:3], replace(OTHER, digest="bb")]
    assert judge.judge_after_kill([CacheOpen(0, 7), replace(GOOD, digest="00")], [apart]) == ()
