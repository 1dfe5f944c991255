"""The choice of schedules, on programs in simulated time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddp.extensions.explore.conflicts import conflicts
from pytest_ddp.extensions.explore.run_events import Event, RankThread
from pytest_ddp.extensions.explore.schedule import Hold, schedule_text
from pytest_ddp.extensions.explore.trials import Exploration
from tests.unit.extensions.explore.programs import by_threads, changes, event, reads
from tests.unit.extensions.explore.simulation import Program, Thread, World, explore, run


def tried(program: Program, most: int = 20) -> list[str]:
    return [schedule_text(schedule) for schedule in explore(program, most).schedules]


# ---------------------------------------------------------------- one hold


def removed_too_early(world: World) -> dict[RankThread | int, Thread]:
    """Rank 0 removes after the barrier what the others load after it."""
    world.files["best"] = "weights"

    def zero() -> Thread:
        yield from world.barrier(0, 1, 3)
        yield 0.1
        yield from world.removes("best", "t.py:9")

    def other(rank: int) -> Thread:
        yield from world.barrier(rank, 1, 3)
        yield from world.reads("best", "t.py:5")

    return {0: zero(), 1: other(1), 2: other(2)}


def removed_after_the_barrier(world: World) -> dict[RankThread | int, Thread]:
    """The mended twin."""
    world.files["best"] = "weights"

    def rank(number: int) -> Thread:
        yield from world.reads("best", "t.py:5")
        yield from world.barrier(number, 1, 3)
        if number == 0:
            yield from world.removes("best", "t.py:9")

    return {number: rank(number) for number in range(3)}


def checked_then_made(world: World) -> dict[RankThread | int, Thread]:
    """Each rank makes a folder unless it exists."""

    def rank(number: int) -> Thread:
        yield 0.1 * number
        if not (yield from world.exists("out", "t.py:1")):
            yield from world.makes("out", "t.py:2")

    return {number: rank(number) for number in range(2)}


def torn(world: World) -> dict[RankThread | int, Thread]:
    """Rank 1 must not see one new file without the other. Held at the first, rank 0 is late with
    both."""
    world.files.update(weights="old", step="old")

    def one() -> Thread:
        yield 0.1
        weights = yield from world.reads("weights", "t.py:4")
        step = yield from world.reads("step", "t.py:5")
        assert weights == step

    def zero() -> Thread:
        yield from world.writes("weights", "new", "t.py:1")
        yield from world.writes("step", "new", "t.py:2")

    return {0: zero(), 1: one()}


def replaced(world: World) -> dict[RankThread | int, Thread]:
    """For a moment there is no folder through which rank 1 opens its file."""
    world.files.update({"latest": "", "latest/model": "weights"})

    def zero() -> Thread:
        yield from world.removes("latest", "t.py:1")
        yield from world.makes("latest", "t.py:2")

    def one() -> Thread:
        yield 0.1
        yield from world.reads("latest/model", "t.py:5")
        assert "latest" in world.files

    return {0: zero(), 1: one()}


def thread_too_late(world: World) -> dict[RankThread | int, Thread]:
    """Nothing that is recorded shows what the thread does."""
    saved: list[int] = []

    def zero() -> Thread:
        yield 0.1
        yield from world.barrier(0, 1)
        assert saved

    def saver() -> Thread:
        yield 0.01
        saved.append(1)

    return {0: zero(), 1: world.barrier(1, 1), RankThread(0, 1): saver()}


def rank_too_late(world: World) -> dict[RankThread | int, Thread]:
    """Nothing that is recorded shows what rank 1 does."""
    begun: list[int] = []

    def zero() -> Thread:
        yield 0.1
        assert begun
        yield from world.barrier(0, 1)

    def one() -> Thread:
        begun.append(1)
        yield from world.barrier(1, 1)

    return {0: zero(), 1: one()}


def stale_in_one_step(bad: int, steps: int = 20) -> Program:
    """Rank 1 must be early in one of its steps; in the others it does not matter."""

    def program(world: World) -> dict[RankThread | int, Thread]:
        world.files["state"] = ""

        def zero() -> Thread:
            for step in range(steps):
                yield 0.1
                yield from world.writes("state", str(step), "t.py:1")
                yield from world.barrier(0, step)

        def one() -> Thread:
            for step in range(steps):
                state = yield from world.reads("state", "t.py:5")
                assert (step, state) != (bad, str(bad))
                yield from world.barrier(1, step)

        return {0: zero(), 1: one()}

    return program


# ---------------------------------------------------------------- two holds


def last_writer(world: World) -> dict[RankThread | int, Thread]:
    """One of six orders of three writers is wrong."""

    def rank(number: int) -> Thread:
        yield 0.1 * number
        yield from world.appends("log", str(number), "t.py:5")
        yield from world.barrier(number, 1, 3)
        assert world.files["log"] != "210"

    return {number: rank(number) for number in range(3)}


def from_any(world: World) -> dict[RankThread | int, Thread]:
    """One of six orders of three messages is wrong."""

    def zero() -> Thread:
        got = []
        for _ in range(3):
            got.append((yield from world.receives(0, "t.py:3")))
        assert got != [3, 2, 1]

    def sender(number: int) -> Thread:
        yield 0.1 * number
        yield from world.sends(number, 0, "t.py:6")

    return {0: zero(), **{number: sender(number) for number in (1, 2, 3)}}


def changed_between_two_reads(world: World) -> dict[RankThread | int, Thread]:
    """Rank 0 is so early that only with a hold it comes between rank 1's reads."""
    world.files["a"] = "0"

    def one() -> Thread:
        yield 0.1
        before = yield from world.reads("a", "t.py:1")
        after = yield from world.reads("a", "t.py:2")
        assert before == after

    return {0: world.writes("a", "1", "t.py:8"), 1: one()}


def two_stale_reads(world: World) -> dict[RankThread | int, Thread]:
    """One is forgiven; each of two ranks may be late."""
    world.files.update(a="old", b="old")
    stale: list[str] = []

    def zero() -> Thread:
        yield from world.writes("a", "new", "t.py:1")
        yield from world.barrier(0, 1)
        yield 0.1
        stale.append((yield from world.reads("b", "t.py:3")))
        yield from world.barrier(0, 2)
        assert stale != ["old", "old"]

    def one() -> Thread:
        yield 0.1
        stale.append((yield from world.reads("a", "t.py:5")))
        yield from world.barrier(1, 1)
        yield from world.writes("b", "new", "t.py:7")
        yield from world.barrier(1, 2)

    return {0: zero(), 1: one()}


def late_in_two_steps(world: World) -> dict[RankThread | int, Thread]:
    """Once is forgiven; it is the same rank that is late."""
    world.files.update(a0="", a1="")
    late: list[str] = []

    def zero() -> Thread:
        for step in range(2):
            yield 0.1
            yield from world.writes(f"a{step}", "new", "t.py:1")
            yield from world.barrier(0, step)
        assert late != ["new", "new"]

    def one() -> Thread:
        for step in range(2):
            late.append((yield from world.reads(f"a{step}", "t.py:5")))
            yield from world.barrier(1, step)

    return {0: zero(), 1: one()}


def two_holders_of_a_lock(world: World) -> dict[RankThread | int, Thread]:
    """Both find no lock, and the one that is late inside overwrites what the other has counted."""
    world.files["count"] = "0"
    counted = []

    def rank(number: int) -> Thread:
        yield 0.1 * number
        if not (yield from world.exists("lock", "t.py:1")):
            counted.append(number)
            yield from world.writes("lock", "", "t.py:2")
            count = int((yield from world.reads("count", "t.py:3")))
            yield from world.writes("count", str(count + 1), "t.py:4")
            if (yield from world.exists("lock", "t.py:5")):
                yield from world.removes("lock", "t.py:6")
        yield from world.barrier(number, 1)
        assert world.files["count"] == str(len(counted))

    return {number: rank(number) for number in range(2)}


@pytest.mark.parametrize(
    ("program", "schedule", "runs"),
    [
        (removed_too_early, "1@open:best#1", 3),
        (checked_then_made, "0@mkdir:out#1", 3),
        (torn, "0@open:step#1", 6),
        (replaced, "0@mkdir:latest#1", 6),
        (thread_too_late, "0.1@begin#1", 3),
        (rank_too_late, "1@begin#1", 4),
        (stale_in_one_step(0), "1@open:state#1", 3),
        (stale_in_one_step(19), "1@open:state#20", 6),
        (stale_in_one_step(9), "1@open:state#10", 8),
        (last_writer, "1@open:log#1+0@open:log#1", 8),
        (from_any, "2@send#1+1@send#1", 9),
        (changed_between_two_reads, "0@open:a#1+1@open:a#2", 6),
        (two_stale_reads, "0@open:a#1+1@open:b#1", 7),
        (late_in_two_steps, "1@open:a0#1+1@open:a1#1", 7),
        (two_holders_of_a_lock, "0@open:lock#1+1@open:count#2", 17),
    ],
)
def test_a_race_is_found_by_the_smallest_schedule(
    program: Program, schedule: str, runs: int
) -> None:
    result = explore(program)
    assert result.failed
    assert schedule_text(result.schedules[-1]) == schedule
    assert len(result.schedules) + 2 == runs
    assert not result.unreached


@pytest.mark.parametrize(
    "program",
    [
        *(last_writer, from_any, changed_between_two_reads, two_stale_reads, late_in_two_steps),
        two_holders_of_a_lock,
    ],
)
def test_no_single_hold_shows_what_needs_two(program: Program) -> None:
    """The programs of the cases above do need two holds, as they are meant to."""
    points = [
        Hold(each.thread, each.point, each.number)
        for events in run(program).threads
        for each in events
        if each.point
    ]
    assert not any(run(program, (hold,)).failed for hold in points)


def test_a_legal_program_passes_every_schedule_and_ends() -> None:
    result = explore(removed_after_the_barrier)
    assert not result.failed
    assert (result.exploration.kinds, result.exploration.open_kinds) == (0, 0)
    assert {schedule[0].point for schedule in result.schedules} == {"begin"}


# ---------------------------------------------------------------- the order of trials


def unrelated(files: int, *, steps: int = 1, ranks: int = 2) -> Program:
    """All ranks write the same files, each on a line of its own, and nothing depends on it."""

    def program(world: World) -> dict[RankThread | int, Thread]:
        def rank(number: int) -> Thread:
            for step in range(steps):
                for file in range(files):
                    yield 0.01 * (number + 1)
                    yield from world.writes(f"f{file}", "", f"t.py:{file}")
                    yield from world.barrier(number, step * files + file, ranks)

        return {number: rank(number) for number in range(ranks)}

    return program


def test_each_kind_comes_once_before_any_comes_twice() -> None:
    schedules = tried(unrelated(4, steps=3), 12)
    assert schedules[:4] == [f"0@open:f{file}#1" for file in range(4)]
    assert schedules[4:6] == ["0@begin#1", "1@begin#1"]
    assert schedules[6:] == [f"0@open:f{file}#3" for file in range(4)]


def test_each_kind_comes_once_before_another_rank_is_held_for_any() -> None:
    schedules = tried(unrelated(2, ranks=3))
    assert schedules[:4] == ["0@open:f0#1", "0@open:f1#1", "1@open:f0#1", "1@open:f1#1"]
    assert schedules[4:7] == ["0@begin#1", "1@begin#1", "2@begin#1"]


def test_what_a_line_does_in_a_library_is_tried_for_each_operation() -> None:
    """Two lines conflict in calls that remove and in calls that rename; then in another file."""

    def program(world: World) -> dict[RankThread | int, Thread]:
        files = {"a": "", "b": "", "c": ""}
        world.files.update(files)

        def zero() -> Thread:
            for number, file in enumerate(files):
                yield from world.exists(file, "t.py:1")
                yield from world.barrier(0, number)

        def one() -> Thread:
            for number, file in enumerate(files):
                yield 0.1
                if file == "b":
                    yield from world.makes_again(file, "t.py:2")
                else:
                    yield from world.removes(file, "t.py:2")
                yield from world.barrier(1, number)

        return {0: zero(), 1: one()}

    assert tried(program)[:5] == [
        *("0@stat:a#1", "0@stat:b#1", "0@begin#1", "1@begin#1", "0@stat:c#1")
    ]


def test_two_holds_and_other_occurrences_come_by_turns() -> None:
    schedules = explore(unrelated(3, steps=5), 24).schedules
    first = [len(schedule) for schedule in schedules].index(2)
    assert [len(schedule) for schedule in schedules[first:]] == [2, 1] * ((24 - 2 - first) // 2)
    # From the middle of a loop outwards.
    assert [schedule_text(each) for each in schedules[first + 1 :: 2]][:3] == [
        f"0@open:f{file}#3" for file in range(3)
    ]


def test_a_late_begin_is_paired_only_if_it_turns_around_what_no_other_hold_does() -> None:
    schedules = explore(unrelated(2, steps=3), 100).schedules
    assert not [each for each in schedules if len(each) == 2 and each[0].point == "begin"]


def test_pairs_of_kinds_come_by_turns_and_two_holds_of_one_thread_last() -> None:
    """Rank 0 writes two of the files a, b and c first, and rank 1 the third."""

    def program(world: World) -> dict[RankThread | int, Thread]:
        def rank(number: int) -> Thread:
            for step in range(2):
                for place, file in enumerate("abc"):
                    yield 0.01 if number == (file == "c") else 0.1
                    yield from world.writes(file, "", f"t.py:{file}")
                    yield from world.barrier(number, 3 * step + place)

        return {number: rank(number) for number in range(2)}

    pairs = [each for each in explore(program, 60).schedules if len(each) == 2]
    assert [schedule_text(pair) for pair in pairs[:3]] == [
        "0@open:a#1+1@open:c#1",
        "0@open:b#1+1@open:c#1",
        "0@open:a#1+1@open:c#2",
    ]
    threads = [len({hold.thread for hold in pair}) for pair in pairs]
    assert threads == sorted(threads, reverse=True)
    assert threads.count(1) > 3 < threads.count(2)


def test_an_order_that_a_plain_run_has_shown_is_not_tried_again() -> None:
    """Rank 0 writes first; held, it writes after both reads, and so the second read has come after
    the write and before it."""

    def program(world: World) -> dict[RankThread | int, Thread]:
        world.files["a"] = ""

        def one() -> Thread:
            yield 0.1
            for _ in range(2):
                yield from world.reads("a", "t.py:1")

        return {0: world.writes("a", "1", "t.py:8"), 1: one()}

    assert tried(program)[:3] == ["0@open:a#1", "0@begin#1", "1@begin#1"]
    assert "1@open:a#2" not in tried(program)


def test_with_few_runs_the_first_trials_are_the_same() -> None:
    many = tried(unrelated(4, steps=3))
    for most in (3, 8, 15):
        assert tried(unrelated(4, steps=3), most) == many[: most - 2]


def test_what_an_earlier_hold_has_turned_around_needs_none() -> None:
    """Held at its first write, rank 0 comes after rank 1 in all."""

    def program(world: World) -> dict[RankThread | int, Thread]:
        def rank(number: int) -> Thread:
            yield 0.1 * number
            for file in range(5):
                yield from world.writes(f"f{file}", "", f"t.py:{file}")

        return {number: rank(number) for number in range(2)}

    result = explore(program, 4)
    assert schedule_text(result.schedules[0]) == "0@open:f0#1"
    assert (result.exploration.kinds, result.exploration.open_kinds) == (5, 0)


def test_a_conflict_whose_hold_ended_too_soon_is_tried_but_not_turned() -> None:
    """The other rank comes to its point only after the bound of the hold."""
    held = event(0, 1, "open:a", site="t.py:1", uses=[changes("a")])
    other = event(1, 2, "open:a", site="t.py:2", uses=[reads("a")])
    more = event(0, 1.1, "open:b", site="t.py:3", uses=[changes("b")])
    later = event(1, 2.1, "open:b", site="t.py:4", uses=[reads("b")])
    exploration = Exploration()
    exploration.ran((), by_threads([held, other, more, later]))
    hold = exploration.next_schedule()
    assert hold == (Hold(RankThread(0), "open:a", 1),)
    exploration.ran(hold, by_threads([held, other, more, later]))
    assert exploration.open_kinds == 1
    assert exploration.turned(hold)[hold[0]].first == held
    assert exploration.next_schedule() == (Hold(RankThread(0), "open:b", 1),)
    exploration.ran((Hold(RankThread(0), "open:b", 1),), by_threads([held, other]))
    assert exploration.next_schedule() is None


def test_a_conflict_that_only_a_held_run_shows_is_tried_with_two_holds() -> None:
    """Rank 1 writes b only if it comes before rank 0 to a; rank 0's b then comes after."""

    def program(world: World) -> dict[RankThread | int, Thread]:
        def zero() -> Thread:
            yield from world.writes("a", "", "t.py:1")
            yield 0.1
            yield from world.exists("b", "t.py:2")

        def one() -> Thread:
            yield 0.1
            if not (yield from world.exists("a", "t.py:5")):
                yield from world.writes("b", "", "t.py:6")

        return {0: zero(), 1: one()}

    result = explore(program)
    assert result.exploration.kinds == 2
    assert "0@open:a#1+1@open:b#1" in [schedule_text(each) for each in result.schedules]
    assert not result.unreached


def test_what_only_a_late_begin_shows_is_tried_with_it() -> None:
    """What rank 1 does depends on something that is not recorded."""

    def program(world: World) -> dict[RankThread | int, Thread]:
        begun: list[int] = []

        def zero() -> Thread:
            yield 0.1
            begun.append(0)
            yield from world.receives(0, "t.py:2")
            yield 0.1
            yield from world.exists("b", "t.py:3")

        def one() -> Thread:
            is_late = bool(begun)
            yield from world.sends(1, 0, "t.py:5")
            if is_late:
                yield from world.writes("b", "", "t.py:6")

        return {0: zero(), 1: one()}

    result = explore(program)
    assert [schedule_text(schedule) for schedule in result.schedules] == [
        *("0@begin#1", "1@begin#1", "1@begin#1+1@open:b#1")
    ]
    assert (result.exploration.kinds, result.exploration.open_kinds) == (1, 0)


def test_passing_folders_is_tried_last_of_the_kinds() -> None:
    makes = event(0, 1, "mkdir:d", site="t.py:1", uses=[changes("d", "entry")])
    makes_too = event(1, 2, "mkdir:d", site="t.py:1", uses=[changes("d", "entry")])
    opens = event(1, 3, "open:d/a", site="t.py:2", uses=[reads("d/a", "entry")])
    first = event(0, 0.5, "open:b", uses=[changes("d/b", "entry")])
    exploration = Exploration()
    exploration.ran((), by_threads([first, makes, makes_too, opens]))
    assert exploration.next_schedule() == (Hold(RankThread(0), "mkdir:d", 1),)


def test_passing_folders_is_paired_last() -> None:
    def program(world: World) -> dict[RankThread | int, Thread]:
        def rank(number: int) -> Thread:
            yield 0.1 * number
            yield from world.makes_again("d", "t.py:1")
            yield from world.exists(f"d/{number}", "t.py:2")
            yield from world.writes("a", "", "t.py:3")

        return {number: rank(number) for number in range(2)}

    assert tried(program) == [
        *("0@mkdir:d#1", "0@begin#1", "1@begin#1", "0@open:a#1"),
        *("0@mkdir:d#1+1@open:a#1", "0@mkdir:d#1+1@stat:d/1#1"),
        *("0@mkdir:d#1+0@open:a#1", "0@stat:d/0#1+0@open:a#1"),  # of one thread
    ]


def test_a_test_with_one_thread_has_nothing_to_try() -> None:
    exploration = Exploration()
    exploration.ran((), by_threads([event(0, 0, "begin"), event(0, 1, "open:a")]))
    assert exploration.next_schedule() is None


@pytest.mark.parametrize("threads", [(), ((),), ((), ())])
def test_a_run_that_has_left_no_events_shows_nothing(
    threads: tuple[tuple[Event, ...], ...],
) -> None:
    exploration = Exploration()
    exploration.ran((), threads)
    exploration.ran((Hold(RankThread(0), "begin"),), threads)
    assert exploration.next_schedule() is None
    assert (exploration.kinds, exploration.open_kinds) == (0, 0)
    assert not exploration.turned((Hold(RankThread(0), "begin"),))


# ---------------------------------------------------------------- what was turned around


def test_the_lines_of_a_finding() -> None:
    result = explore(removed_too_early)
    (conflict,) = result.exploration.turned(result.schedules[-1]).values()
    assert (conflict.first.site, conflict.second.site) == ("t.py:5", "t.py:9")


def test_a_late_begin_is_shown_by_the_last_conflict_that_it_has_turned() -> None:
    def turned(program: Program, hold: Hold) -> str:
        exploration = Exploration()
        exploration.ran((), run(program).threads)
        exploration.ran((hold,), run(program, (hold,)).threads)
        exploration.ran((), run(program).threads)
        return exploration.turned((hold,))[hold].second.site

    assert turned(last_writer, Hold(RankThread(0), "begin")) == "t.py:5"
    assert turned(removed_too_early, Hold(RankThread(1), "open:best")) == "t.py:9"


def test_of_two_holds_each_has_its_conflict() -> None:
    result = explore(two_stale_reads)
    turned = result.exploration.turned(result.schedules[-1])
    assert tuple(turned) == result.schedules[-1]
    assert [each.first.site for each in turned.values()] == ["t.py:1", "t.py:7"]


def test_a_second_hold_is_shown_by_what_it_has_turned_back() -> None:
    result = explore(two_holders_of_a_lock)
    late, back = result.exploration.turned(result.schedules[-1]).values()
    assert (late.first.thread, late.first.point) == (RankThread(0), "open:lock")
    assert back.first[:1] + back.first[2:4] == (RankThread(1), "open:count", 2)
    assert back.second.thread == RankThread(0)
    assert back.use in back.first.accesses
    assert back.other_use in back.second.accesses


# ---------------------------------------------------------------- random programs

_STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["reads", "writes", "adds", "sleeps", "barrier"])),
    min_size=1,
    max_size=10,
)


def drawn(steps: list[tuple[int, str]]) -> Program:
    def program(world: World) -> dict[RankThread | int, Thread]:
        world.files["a"] = ""

        def rank(own: int) -> Thread:
            for number, (which, does) in enumerate(steps):
                line = f"t.py:{number}"
                if does == "barrier":
                    yield from world.barrier(own, number, 3)
                elif which == own:
                    if does == "sleeps":
                        yield 0.1
                    elif does == "reads":
                        yield from world.reads("a", line)
                    elif does == "writes":
                        yield from world.writes("a", "", line)
                    else:
                        yield from world.adds("k", line)

        return {own: rank(own) for own in range(3)}

    return program


@settings(deadline=None, max_examples=40)
@given(_STEPS)
def test_the_same_records_give_the_same_trials_and_each_once(steps: list[tuple[int, str]]) -> None:
    result = explore(drawn(steps), 40)
    assert tried(drawn(steps), 40) == [schedule_text(schedule) for schedule in result.schedules]
    assert len(set(result.schedules)) == len(result.schedules)
    sizes = [len(schedule) for schedule in result.schedules]
    assert set(sizes) <= {1, 2}


@settings(deadline=None, max_examples=40)
@given(_STEPS)
def test_all_orders_of_the_conflicts_are_seen_in_the_end(steps: list[tuple[int, str]]) -> None:
    """Each hold turns its conflicts around in these programs: whatever conflicts in a plain run has
    come in both orders, if no conflict is open."""
    program = drawn(steps)
    result = explore(program, 200)
    assert result.exploration.open_kinds == 0
    seen: set[tuple[object, object]] = set()
    for schedule in [(), *result.schedules]:
        moments = {
            (each.thread, each.point, each.number): each.at
            for events in run(program, schedule).threads
            for each in events
        }
        seen |= {(a, b) for a in moments for b in moments if moments[a] < moments[b]}

    def name(each: Event) -> object:
        return each.thread, each.point, each.number

    for conflict in conflicts(run(program).threads):
        assert (name(conflict.first), name(conflict.second)) in seen
        assert (name(conflict.second), name(conflict.first)) in seen
