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


def test_a_cache_without_tensors_is_no_pass() -> None:
    assert texts(judge.judge_placement([])) == ["the cache shows no tensor"]


def test_a_file_is_refused_by_all_or_put_right() -> None:
    assert judge.judge_refusal([Refused(0, "CacheError"), Refused(1, "CacheError")]) == ()
    assert judge.judge_refusal([CacheOpen(0, 7), GOOD]) == ()
    assert texts(judge.judge_refusal([Refused(1, "CacheError"), CacheOpen(0, 7), GOOD])) == [
        "rank 1 refused the file, rank 0 opened it"
    ]
    assert len(judge.judge_refusal([CacheOpen(0, 7), replace(GOOD, device="cuda:0")])) == 1


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
