"""What is made of the lines that ranks write: the trace file and the picture; no process."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.outcome.outcome import Ending, Hang, HangKind, Machine, RankLine, RunOutcome
from pytest_ddp.protocol.host_messages import Clock
from pytest_ddp.protocol.messages import Phase
from pytest_ddp.protocol.trace_lines import TraceLine, TraceLog
from pytest_ddp.trace.chrome import PHASES, chrome_trace
from pytest_ddp.trace.files import stem_of, write, write_index
from pytest_ddp.trace.picture import Scale, page, picture, time_words
from pytest_ddp.trace.timeline import (
    Collective,
    CollectiveState,
    RankEnd,
    Timeline,
    make_timeline,
    parse,
)
from tests.unit import handmade as made
from tests.unit.handmade import failed, lost_in_call, merged, passing, rank, report, run
from tests.unit.standings import code_line, collective, standing

MS = 1_000_000
BEGAN = 7_000_000_000


def lines(*written: tuple[Any, ...]) -> str:
    """What a rank wrote: kind, milliseconds since the test began, details."""
    return "".join(
        json.dumps([w, BEGAN + round(ms * MS), *rest]) + "\n" for w, ms, *rest in written
    )


def call(ms: float, key: int, number: int, operation: str = "all_reduce") -> tuple[Any, ...]:
    site = ("/src/test_made.py", 9)
    return (TraceLine.CALL, ms, key, "0", number, operation, 3, "float32", "SUM", None, site)


WORK = lines(
    (TraceLine.PHASE, 0, 0, "setup", None),
    (TraceLine.GROUP, 0, "0", 40),
    (TraceLine.LEFT, 1, 1),
    (TraceLine.PHASE, 1, 0, "setup", None),
    (TraceLine.PHASE, 5, 0, "call", None),
    call(6, 1, 41),
    (TraceLine.WAITED, 8, 1, None),
    (TraceLine.PHASE, 10, 1, "backward", ("/src/test_made.py", 20)),
    (TraceLine.RECORDED, 11, 5, "0", 42, "all_reduce", 20, "Float", BEGAN + 11 * MS, False),
    (TraceLine.RECORDED, 13, 5, "0", 42, "all_reduce", 20, "Float", BEGAN + 11 * MS, True),
    (TraceLine.LEFT, 14, 1),
    call(15, 1, 43, "barrier"),
)


def outcome(*texts: str, **known: Any) -> RunOutcome:
    ranks = [
        replace(lost_in_call(number, Ending.STOPPED, at=0.5), trace=text)
        for number, text in enumerate(texts)
    ]
    return run(*ranks, began=BEGAN / 1e9, **known)


def timeline(*texts: str, **known: Any) -> Timeline:
    made = outcome(*texts, **known)
    return make_timeline(made, merged(*made.ranks, **known))


# ------------------------------------------------------------------ machines


def on_another(made: RunOutcome, clock: Clock, *, is_lost: bool = False) -> Timeline:
    """The timeline with the last rank on another machine."""
    *others, last = made.ranks
    moved = replace(last, machine=Machine("node 1 (beta)", clock, is_lost))
    return make_timeline(replace(made, ranks=(*others, moved)), merged(*made.ranks))


def shifted(written: str, by: int) -> str:
    found = [json.loads(line) for line in written.splitlines()]
    return "\n".join(json.dumps([what, at + by, *rest]) for what, at, *rest in found)


def test_a_rank_of_another_machine_is_put_on_our_clock() -> None:
    plain = lines(
        (TraceLine.PHASE, 0, 0, "call", None), call(6, 1, 41), (TraceLine.WAITED, 8, 1, None)
    )
    day = 86_400 * 10**9
    made = on_another(outcome(plain, shifted(plain, day)), Clock(day, 0, 200_000))
    ours, theirs = made.tracks
    assert theirs.events == ours.events
    trace = chrome_trace(made)
    assert trace["otherData"]["clock_uncertainty_us"] == {"node 1 (beta)": 200.0}
    assert "rank 1, node 1 (beta)" in page(made)
    assert "times of node 1 (beta) ± 200 µs" in page(made)


def test_what_began_after_the_end_by_a_clock_that_is_off_has_no_negative_length() -> None:
    late = lines((TraceLine.PHASE, 0, 0, "call", None), (TraceLine.PHASE, 501, 1, "forward", None))
    made = on_another(outcome(late), Clock(0, 0, 2 * MS), is_lost=True)
    assert all(phase.begin <= phase.end for phase in made.tracks[0].events.phases)
    assert chrome_trace(made)["otherData"]["lost_machines"] == ["node 1 (beta)"]
    assert "lost with node 1 (beta)" in page(made)
    assert_opens_in_perfetto(chrome_trace(made))


# ------------------------------------------------------------------ events


def test_phases_are_nested_and_the_two_setups_are_one() -> None:
    phases = parse(WORK, BEGAN, 500 * MS).phases
    assert [(p.name, p.depth, p.begin // MS, p.end // MS) for p in phases] == [
        ("setup", 0, 0, 5),
        ("call", 0, 5, 500),
        ("backward", 1, 10, 14),
    ]


def test_a_collective_lasts_from_the_call_to_the_end_of_the_wait() -> None:
    first = parse(WORK, BEGAN, 500 * MS).collectives[0]
    assert (first.begin, first.end, first.state) == (6 * MS, 8 * MS, CollectiveState.DONE)
    assert (first.number, first.elements, first.reduce_op) == (1, 3, "SUM"), "40 came before"


def test_what_cpp_issued_ends_with_its_phase() -> None:
    issued = parse(WORK, BEGAN, 500 * MS).collectives[1]
    assert not issued.by_python
    assert (issued.number, issued.begin, issued.end) == (2, 11 * MS, 14 * MS)


def test_a_wait_that_raised_has_the_exception() -> None:
    text = lines(call(1, 1, 1), (TraceLine.WAITED, 2, 1, "RuntimeError"))
    [only] = parse(text, BEGAN, 9 * MS).collectives
    assert (only.state, only.error) == (CollectiveState.FAILED, "RuntimeError")


def test_a_key_that_is_used_again_is_another_call() -> None:
    text = lines(call(1, 1, 1), call(2, 1, 2), (TraceLine.WAITED, 3, 1, None))
    states = [call.state for call in parse(text, BEGAN, 9 * MS).collectives]
    assert states == [CollectiveState.UNAWAITED, CollectiveState.DONE]


@given(st.integers(0, len(WORK)))
def test_a_rank_may_be_killed_between_any_two_bytes(size: int) -> None:
    whole = parse(WORK, BEGAN, 500 * MS)
    part = parse(WORK[:size], BEGAN, 500 * MS)
    begun = {(p.name, p.begin) for p in whole.phases}
    assert {(p.name, p.begin) for p in part.phases} <= begun
    assert len(part.collectives) <= len(whole.collectives)


def test_a_rank_writes_what_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "rank-1.trace"
    log = TraceLog(str(file))
    log.write(TraceLine.PHASE, 0, "call", None)
    if (child := os.fork()) == 0:
        log.write(TraceLine.PHASE, 1, "another process", None)
        os._exit(0)
    os.waitpid(child, 0)
    phases = parse(file.read_text(), 0, 10**18).phases
    assert [phase.name for phase in phases] == ["call"], "a forked child spoke for the rank"


def test_a_full_file_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ddp.protocol.trace_lines._LIMIT", 200)
    log = TraceLog(str(tmp_path / "trace"))
    for _ in range(50):
        log.write(TraceLine.LEFT, 0)
    assert parse((tmp_path / "trace").read_text(), 0, 1).truncated
    assert (tmp_path / "trace").stat().st_size < 300


# ------------------------------------------------------------------ where ranks stood


def test_ends() -> None:
    reports = (report(Phase.SETUP), failed("assert x == 5", x=4), report(Phase.TEARDOWN))
    ranks = [
        passing(0),
        rank(1, *reports),
        replace(
            lost_in_call(2),
            returncode=-9,
            phase=("call", "backward"),
            seen_at=code_line("/a.py:3 in f"),
        ),
        lost_in_call(3, Ending.STOPPED),
    ]
    stands = [t.stand for t in make_timeline(run(*ranks), merged(*ranks)).tracks]
    assert [s.end for s in stands] == [RankEnd.ENDED, RankEnd.FAILED, RankEnd.DIED, RankEnd.STOPPED]
    assert stands[1].words.startswith("AssertionError")
    words = "died of SIGKILL in call: backward; SIGKILL leaves no stack; the out-of-memory killer"
    assert stands[2].words.startswith(words)
    assert stands[2].place == code_line("/a.py:3 in f")


def test_a_rank_has_the_place_and_the_sizes_that_the_text_has() -> None:
    waits = standing(collective(1, 0, 1, numel=20))
    died = made.dead(0, stacks=made.CRASHED, seen_at=code_line("/torch.py:9 in g"))
    ranks = [died, made.stopped(1, status=waits), made.stopped(2)]
    stands = [t.stand for t in make_timeline(run(*ranks), merged(*ranks)).tracks]
    shown = " ".join(made.text(*ranks).split())
    for stand, words in zip(stands, ("rank 0 died of SIGSEGV", "", "stopped in call"), strict=True):
        assert stand.words.startswith(words.removeprefix("rank 0 "))
        assert words in shown
    assert stands[0].place == code_line("tests/test_made.py:14 in helper")
    assert stands[2].place == code_line("tests/test_made.py:33 in test_made")
    assert str(stands[0].place) in shown
    assert str(stands[2].place) in shown
    assert stands[1].words == "all_reduce #1 (20 x float32) of the default group"


HANG = Hang(
    HangKind.FOR_ENDED,
    "rank 0 waits in barrier #3 of the default group, rank 1 has ended",
    (1,),
    (
        RankLine(
            0, "waits", ("call",), "barrier #3 of the default group", code_line("test_made.py:9")
        ),
    ),
)


def test_a_rank_of_a_hang_waits() -> None:
    [track] = timeline(WORK, hang=HANG).tracks
    assert (track.stand.end, track.stand.words) == (RankEnd.WAITS, HANG.table[0].collective)


# ------------------------------------------------------------------ Chrome's format


def assert_opens_in_perfetto(trace: dict[str, Any]) -> None:
    """The rules of the format that Perfetto's importer relies on.

    Every slice's process and thread is named by a metadata event, slices are complete
    events with times in microseconds, in the order of their begins, and those of one
    thread are nested or apart.
    """
    json.dumps(trace, allow_nan=False)
    events = trace["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    timed = [event for event in events if event["ph"] != "M"]
    assert events[len(events) - len(timed) :] == timed, "metadata comes first"
    assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed)
    open_ends: dict[tuple[int, int], list[float]] = defaultdict(list)
    for event in timed:
        assert event["ph"] in "Xi"
        assert event["pid"] in processes
        assert (event["pid"], event["tid"]) in named
        if event["ph"] == "i":
            assert event["s"] in "tpg"
            continue
        assert event["dur"] >= 0
        stack = open_ends[event["pid"], event["tid"]]
        while stack and stack[-1] <= event["ts"] + 1e-6:
            stack.pop()
        end = event["ts"] + event["dur"]
        assert not stack or end <= stack[-1] + 1e-6, f"{event['name']} crosses another slice"
        stack.append(end)


def test_the_trace_follows_the_rules() -> None:
    trace = chrome_trace(timeline(WORK, WORK, hang=HANG))
    assert_opens_in_perfetto(trace)
    names = [e["name"] for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1]
    expected = ["all_reduce #1", "all_reduce #2", "backward", "barrier #3", "call", "setup"]
    assert sorted(names) == expected
    slices = [e for e in trace["traceEvents"] if e["name"] == "all_reduce #1" and e["pid"] == 0]
    assert (slices[0]["ts"], slices[0]["dur"]) == (6000.0, 2000.0), "microseconds"
    assert slices[0]["args"]["group"] == "the default group"
    assert (slices[0]["args"]["elements"], slices[0]["args"]["bytes"]) == (3, 12)
    ends = {e["pid"]: e["name"] for e in trace["traceEvents"] if e["ph"] == "i"}
    assert ends[0] == "waits: barrier #3 of the default group"


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        *(("float32", 20), ("Float", 20), ("bfloat16", 10), ("Long", 40), ("bool", 5)),
        *(("float8_of_tomorrow", None), (None, None)),
    ],
)
def test_bytes_are_those_of_the_elements(dtype: str | None, expected: int | None) -> None:
    call = Collective("all_reduce", "0", 1, 0, 1, CollectiveState.DONE, elements=5, dtype=dtype)
    assert call.bytes == expected
    assert replace(call, elements=None).bytes is None


@given(
    st.lists(st.tuples(st.floats(0, 400), st.floats(0, 90), st.booleans()), max_size=30),
)
def test_overlapping_collectives_lie_in_threads_of_their_own(
    spans: list[tuple[float, float, bool]],
) -> None:
    written: list[tuple[Any, ...]] = [(TraceLine.PHASE, 0.0, 0, "call", None)]
    for key, (begin, length, waited) in enumerate(spans):
        written.append(call(begin, key, key + 1))
        if waited:
            written.append((TraceLine.WAITED, begin + length, key, None))
    written.sort(key=lambda line: line[1])
    trace = chrome_trace(timeline(lines(*written)))
    assert_opens_in_perfetto(trace)
    drawn = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["tid"] > PHASES]
    assert len(drawn) == len(spans)


# ------------------------------------------------------------------ the picture


@given(st.lists(st.integers(0, 10**12), max_size=20), st.integers(1, 10**12))
def test_time_runs_from_left_to_right(moments: list[int], duration: int) -> None:
    scale = Scale.of(moments, duration, 100.0, 1100.0)
    inside = sorted({0, duration, *(at for at in moments if at <= duration)})
    pixels = [scale.x(at) for at in inside]
    assert pixels == sorted(pixels)
    assert pixels[0] == pytest.approx(100.0)
    assert pixels[-1] == pytest.approx(1100.0)
    assert all(0 <= at <= duration for at in scale.ticks())


def test_a_long_silence_leaves_room_for_the_rest() -> None:
    scale = Scale.of([10 * MS, 300_000 * MS], 300_010 * MS, 0.0, 1000.0)
    assert scale.x(10 * MS) > 300
    assert [segment.silent for segment in scale.segments] == [False, True, False]


@pytest.mark.parametrize(
    ("nanoseconds", "words"),
    [(0, "0"), (850, "850 ns"), (12_340, "12.3 µs"), (999_999, "1.00 ms"), (4.2e9, "4.20 s")],
)
def test_times_have_three_digits(nanoseconds: float, words: str) -> None:
    assert time_words(nanoseconds) == words


def test_the_picture_has_a_lane_for_each_rank() -> None:
    svg = ElementTree.fromstring(picture(timeline(WORK, WORK, WORK, hang=HANG)))
    lanes = svg.findall("rect[@class='lane']")
    assert [lane.get("data-rank") for lane in lanes] == ["0", "1", "2"]
    tops = [float(lane.get("y", "")) for lane in lanes]
    bottoms = [top + float(lane.get("height", "")) for top, lane in zip(tops, lanes, strict=True)]
    for number, group in enumerate(svg.findall("g[@class='rank']")):
        boxes = [r for r in group.iter("rect") if "op-" in r.get("class", "")]
        assert len(boxes) == 3
        for box in boxes:
            y = float(box.get("y", ""))
            assert tops[number] <= y <= y + float(box.get("height", "")) <= bottoms[number]


def test_hovering_shows_the_details() -> None:
    seen = "".join(ElementTree.fromstring(picture(timeline(WORK, hang=HANG))).itertext())
    assert "all_reduce #1 of the default group\n3 x float32, 12 bytes, SUM" in seen
    assert "called at /src/test_made.py:9" in seen


def test_a_thousand_collectives_are_drawn_as_what_can_be_seen() -> None:
    written = []
    for number in range(1, 1001):
        written += [
            call(number / 100, 1, number),
            (TraceLine.WAITED, (number + 0.9) / 100, 1, None),
        ]
    written.append(call(490, 1, 1001))
    svg = picture(timeline(lines(*written)))
    assert svg.count('class="call"') < 500
    assert "collectives, too close to be drawn apart" in svg


def test_the_page_needs_nothing_from_elsewhere() -> None:
    text = page(timeline(WORK, hang=HANG))
    assert not re.search(r"<script|<link|<img|@import|url\((?!#)|(?:src|href)=", text)
    assert "deadlock: rank 0 waits" in text


def test_the_page_escapes_what_it_is_given() -> None:
    nasty = "test_x.py::test[<script>alert(1)</script>&\"']"
    assert "<script" not in page(replace(timeline(WORK), test=nasty, verdict=nasty))


@pytest.mark.parametrize("text", ["", "not json\n", lines((TraceLine.FULL, 1))])
def test_ranks_without_a_trace_are_drawn_as_well(text: str) -> None:
    assert "rank 0" in page(timeline(text))
    assert_opens_in_perfetto(chrome_trace(timeline(text)))


# ------------------------------------------------------------------ files


def test_names_of_files_are_plain_short_and_unlike() -> None:
    nodeids = ["t.py::a/b", "t.py::a_b", "t.py::" + "x" * 500, "t.py::é\n\0", "t.py::\ud800", ".."]
    stems = [stem_of(nodeid) for nodeid in nodeids]
    assert len(set(stems)) == len(stems)
    for stem in stems:
        assert re.fullmatch(r"[A-Za-z0-9.=_-]{1,120}", stem)
        assert not stem.startswith((".", "-"))


def test_a_page_goes_when_its_test_passes(tmp_path: Path) -> None:
    broken, good = outcome(WORK), run(passing(0))
    page_of_failed = write(tmp_path, broken, merged(*broken.ranks))
    assert page_of_failed is not None
    assert page_of_failed.exists()
    assert write(tmp_path, good, merged(*good.ranks)) is None
    assert not page_of_failed.exists()


def test_the_index_names_all_that_is_there(tmp_path: Path) -> None:
    write_index(tmp_path)
    assert not list(tmp_path.iterdir())
    nasty = replace(outcome(WORK), nodeid="test_x.py::test[<b>&]")
    page_of_failed = write(tmp_path, nasty, merged(*nasty.ranks))
    assert page_of_failed is not None
    for _ in range(2):
        write_index(tmp_path)
        text = (tmp_path / "index.html").read_text()
        assert text.count(f'href="{page_of_failed.name}">test_x.py::test[&lt;b&gt;&amp;]</a>') == 1
        assert text.count(f'href="{page_of_failed.stem}.json"') == 1
        assert "index.html" not in text
        assert "rank 0 was stopped in call" in text


def test_only_a_failed_test_has_a_page(tmp_path: Path) -> None:
    for each in (run(passing(0)), outcome(WORK)):
        write(tmp_path / "new" / each.backend, each, merged(*each.ranks))
        files = sorted(file.suffix for file in (tmp_path / "new" / each.backend).iterdir())
        made_it = [".json"] if each.ranks[0].ending is Ending.DONE else [".html", ".json"]
        assert files == made_it
        for file in (tmp_path / "new" / each.backend).iterdir():
            file.unlink()
