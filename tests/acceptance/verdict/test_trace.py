"""``--ddp-trace``: what ranks wrote down, whatever became of them, and how it looks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image, ImageColor

from pytest_ddp.trace.files import stem_of
from tests.acceptance.suite import Finished, Suite
from tests.acceptance.verdict.browser import Browser, find_browser

SOURCE = """
    import os
    import signal

    import pytest
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def train(ddp):
        torch.set_num_threads(1)
        with ddp.phase("warm-up"):
            model = DistributedDataParallel(torch.nn.Linear(4, 4))
        model(torch.ones(2, 4)).sum().backward()

    @pytest.mark.ddp(world_size=2)
    def test_trains(ddp):
        train(ddp)
        works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(3)]
        for work in reversed(works):
            work.wait()

    @pytest.mark.ddp(world_size=2)
    def test_group_made_anew(ddp, tmp_path):
        dist.all_reduce(torch.ones(7))
        dist.destroy_process_group()
        store = dist.FileStore(str(tmp_path / "store"), 2)
        dist.init_process_group("gloo", store=store, rank=ddp.rank, world_size=2)
        dist.all_reduce(torch.ones(9))

    @pytest.mark.ddp(world_size=3)
    def test_hangs(ddp):
        train(ddp)
        dist.all_reduce(torch.ones(3))
        if ddp.rank == 0:
            dist.barrier()

    @pytest.mark.ddp(world_size=2)
    def test_dies(ddp):
        train(ddp)
        dist.all_reduce(torch.ones(5))
        if ddp.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    @pytest.mark.ddp(world_size=2)
    @pytest.mark.parametrize("path", ["a/b c\\n", "x" * 300])
    def test_odd_names(ddp, path):
        dist.barrier()
"""


@pytest.fixture(scope="module")
def traced(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_traced.py", SOURCE)
    return suite.run("--ddp-trace=made/traces", timeout=120)


def _file(traced: Finished, name: str, ending: str) -> Path:
    found = [nodeid for nodeid in traced.results if nodeid.endswith(f"::{name}")]
    return traced.directory / "made" / "traces" / f"{stem_of(found[0])}{ending}"


def _events(traced: Finished, name: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(_file(traced, name, ".json").read_text())[
        "traceEvents"
    ]
    return events


def _slices(traced: Finished, name: str, rank: int) -> dict[str, dict[str, Any]]:
    return {
        event["name"]: event
        for event in _events(traced, name)
        if event["pid"] == rank and event["ph"] == "X"
    }


def _ends(traced: Finished, name: str) -> list[str]:
    return [event["name"] for event in _events(traced, name) if event["ph"] == "i"]


def test_verdicts_are_the_same(traced: Finished) -> None:
    traced.assert_outcomes(passed=4, failed=2)


@pytest.mark.parametrize("rank", [0, 1])
def test_phases_and_collectives(traced: Finished, rank: int) -> None:
    slices = _slices(traced, "test_trains", rank)
    assert {"setup", "call", "teardown", "warm-up", "DDP construction", "backward"} <= set(slices)
    asked = [event for event in slices.values() if event["args"].get("elements") == 3]
    assert len(asked) == 3
    for event in asked:
        assert event["args"]["reduce_op"] == "SUM"
        assert event["args"]["dtype"] == "float32"
        assert re.search(r"test_traced\.py:\d+$", event["args"]["site"])
        assert event["args"]["state"] == "is complete"
        call = slices["call"]
        assert call["ts"] <= event["ts"] <= event["ts"] + event["dur"] <= call["ts"] + call["dur"]


def test_gradients_are_seen_inside_backward(traced: Finished) -> None:
    slices = _slices(traced, "test_trains", 0)
    backward = slices["backward"]
    [gradients] = [
        event
        for name, event in slices.items()
        if name.startswith("all_reduce") and event["args"]["elements"] == 20
    ]
    assert gradients["args"]["site"] == "C++"
    assert backward["ts"] <= gradients["ts"] <= backward["ts"] + backward["dur"]


def test_group_made_anew_counts_for_itself(traced: Finished) -> None:
    asked = {
        event["args"].get("elements"): event["name"]
        for event in _events(traced, "test_group_made_anew")
        if event["ph"] == "X"
    }
    assert asked[7].startswith("all_reduce #1")
    assert asked[9].startswith("all_reduce #1")


def test_ranks_share_a_clock(traced: Finished) -> None:
    """A collective cannot end on one rank before it has begun on the other."""
    mine, other = (_slices(traced, "test_trains", rank) for rank in (0, 1))
    asked = [name for name, event in mine.items() if event["args"].get("elements") == 3]
    for name in asked:
        assert mine[name]["ts"] <= other[name]["ts"] + other[name]["dur"]
        assert other[name]["ts"] <= mine[name]["ts"] + mine[name]["dur"]


def test_where_the_ranks_of_a_hang_stood(traced: Finished) -> None:
    ends = _ends(traced, "test_hangs")
    assert sorted(ends)[:2] == ["ended", "ended"]
    assert re.fullmatch(r"waits: barrier #\d of the default group", sorted(ends)[2])
    waiting = [e for n, e in _slices(traced, "test_hangs", 0).items() if n.startswith("barrier")]
    assert [event["args"]["state"] for event in waiting] == ["is not complete"]


def test_a_killed_rank_has_all_that_it_did(traced: Finished) -> None:
    words = "died: died of SIGKILL in call; SIGKILL leaves no stack"
    assert any(end.startswith(words) for end in _ends(traced, "test_dies"))
    slices = _slices(traced, "test_dies", 1)
    assert {"setup", "call", "warm-up", "DDP construction", "backward"} <= set(slices)
    assert [e for e in slices.values() if e["args"].get("elements") == 5]


def test_odd_names_have_files(traced: Finished) -> None:
    files = list((traced.directory / "made" / "traces").glob("*.json"))
    assert len(files) == 6
    assert all(re.fullmatch(r"[A-Za-z0-9._=-]+", file.name) for file in files)


def test_only_failed_tests_have_pages(traced: Finished) -> None:
    pages = {file.stem for file in (traced.directory / "made" / "traces").glob("*.html")}
    expected = {_file(traced, name, "").name for name in ("test_hangs", "test_dies")}
    assert pages == {*expected, "index"}


def test_pages_are_found_from_the_failure_and_from_the_index(traced: Finished) -> None:
    index = (traced.directory / "made" / "traces" / "index.html").read_text(encoding="utf-8")
    for name in ("test_hangs", "test_dies"):
        page = _file(traced, name, ".html").name
        assert traced.stdout.count(f"made/traces/{page}") == 1
        assert f'href="{page}"' in index
    assert "deadlock: " in index


@pytest.mark.parametrize("options", [(), ("--ddp-trace=traces",)])
def test_ranks_record_only_if_a_trace_is_wanted(suite: Suite, options: tuple[str, ...]) -> None:
    suite.write(
        "test_plain.py",
        f"""
        import os
        import pytest

        @pytest.mark.ddp(world_size=2)
        def test_plain(ddp):
            # realpath, as another thread may close a descriptor meanwhile.
            folder = "/proc/self/fd"
            opened = [os.path.realpath(f"{{folder}}/{{fd}}") for fd in os.listdir(folder)]
            assert any("pytest-ddp trace" in file for file in opened) == {bool(options)}
        """,
    )
    suite.run(*options).assert_outcomes(passed=1)


def test_a_directory_that_cannot_be_made_fails_no_test(suite: Suite) -> None:
    suite.write("file", "")
    suite.write(
        "test_plain.py",
        """
        import pytest

        @pytest.mark.ddp(world_size=2)
        def test_plain(ddp):
            pass
        """,
    )
    finished = suite.run("--ddp-trace=file/below")
    finished.assert_outcomes(passed=1)
    assert any("no trace could be written" in warning for warning in finished.warnings)


def test_a_file_is_no_directory(suite: Suite) -> None:
    suite.write("file", "")
    finished = suite.run("--ddp-trace=file")
    assert finished.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--ddp-trace=file: there is a file of this name" in finished.output


# ------------------------------------------------------------------ in a browser

MARGIN = 32
"""Pixels left of the picture, which is as wide as drawn in a window of 1280."""
COLOURS = {
    False: {"ground": "#ffffff", "lane": "#f4f6f9", "op op-all_reduce": "#0072b2"},
    True: {"ground": "#10151c", "lane": "#1a212b", "op op-all_reduce": "#3d9fdb"},
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    return find_browser(tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="module")
def svg(traced: Finished, browser: Browser) -> ElementTree.Element:
    document = browser.dump(_file(traced, "test_hangs", ".html"))
    found = re.search(r"<svg.*</svg>", document, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found[0].replace("&nbsp;", " "))


def _runs(picture: Image.Image, x: int, colour: str) -> list[tuple[int, int]]:
    """First and last row of each stretch of a colour in a column."""
    wanted = ImageColor.getrgb(colour)
    rows = [y for y in range(picture.height) if picture.getpixel((x, y)) == wanted]
    starts = [y for y in rows if y - 1 not in rows]
    return [(y, next(e for e in rows if e >= y and e + 1 not in rows)) for y in starts]


def _number(element: ElementTree.Element, name: str) -> float:
    return float(element.attrib[name])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_lanes_are_where_they_should_be(
    traced: Finished, browser: Browser, svg: ElementTree.Element, dark: bool
) -> None:
    picture = browser.screenshot(_file(traced, "test_hangs", ".html"), dark=dark)
    colours = COLOURS[dark]
    assert picture.size == (1280, 800)
    assert picture.getpixel((4, 400)) == ImageColor.getrgb(colours["ground"])
    lanes = [rect for rect in svg.iter("rect") if rect.get("class") == "lane"]
    runs = _runs(picture, MARGIN + 8, colours["lane"])
    assert len(runs) == len(lanes) == 3, "a lane for each rank"
    offset = runs[0][0] - _number(lanes[0], "y")
    for lane, (top, bottom) in zip(lanes, runs, strict=True):
        assert top == pytest.approx(_number(lane, "y") + offset, abs=2)
        assert bottom - top == pytest.approx(_number(lane, "height"), abs=3)
    boxes = [r for r in svg.iter("rect") if r.get("class") == "op op-all_reduce"]
    # DDP's and the test's own are one box where they are too close to be distinguished.
    assert len({box.get("y") for box in boxes}) == 3, "an all_reduce in each lane"
    for box in boxes:
        if _number(box, "width") < 20:
            continue  # the mark of the lane's end may lie upon it
        y = round(_number(box, "y") + offset + 6)
        x = round(MARGIN + _number(box, "x") + 3)
        assert picture.getpixel((x, y)) == ImageColor.getrgb(colours["op op-all_reduce"])


def test_the_waiting_rank_is_marked(svg: ElementTree.Element) -> None:
    ranks = [group for group in svg.iter("g") if group.get("class") == "rank"]
    ends = [
        next(t.text for t in rank.iter("text") if t.get("class", "").startswith("end"))
        for rank in ranks
    ]
    assert ends == ["waits", "ended", "ended"]
    unfinished = [
        sum(rect.get("class") == "unfinished" for rect in rank.iter("rect")) for rank in ranks
    ]
    assert unfinished == [1, 0, 0]
