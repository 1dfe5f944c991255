"""Points of opening a file, from its audit event."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_ddp.extensions.explore.ranks.accesses import Access, Thing, ThingKind
from pytest_ddp.extensions.explore.ranks.file_points import FilePoints
from pytest_ddp.extensions.explore.ranks.paths import Paths
from pytest_ddp.extensions.explore.ranks.recording import Recording

FILLS = Access(Thing(ThingKind.FILE, "a"), changes=True, verb="fills")


def opened(folder: Path, name: str, mode: str | None, *, held: str = "") -> list[tuple[str, bool]]:
    """The points of opening a file, and whether each fills it."""
    recording = Recording(0, 2, "/root/", None, list[str]().append)
    recording.on_point = lambda thread, point, number, arrive: arrive() if point == held else None
    recording.begin_thread(0)
    recording.is_on = True
    points = FilePoints(recording, Paths(str(folder), "/root"))
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    points.on_call("open", (str(folder / name), mode, flags))
    ((_, events),) = recording.sent()
    return [(point, FILLS in uses) for _, point, _, _, uses, *_ in events]


def test_a_file_that_is_emptied_has_a_point_before_it_is_filled(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("before")
    assert opened(tmp_path, "a", "wb") == [("open:a", False), ("write:a", True)]
    assert (tmp_path / "a").read_text() == "before"


def test_other_modes_have_none(tmp_path: Path) -> None:
    for mode in ("a", "r+", "x", None):
        assert opened(tmp_path, "a", mode) == [("open:a", False)]


def test_a_rank_that_is_held_there_has_emptied_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("before")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    for name in ("a", "new", "missing/new", "dangling"):
        opened(tmp_path, name, "w", held=f"write:{name}")
    assert (tmp_path / "a").read_text() == (tmp_path / "new").read_text() == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "dangling", "new"]


def test_a_folder_in_which_tempfile_opens_a_file_is_not_filled(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert opened(tmp_path, "a", "w+b", held="write:a") == [("open:a", False), ("write:a", False)]


def test_a_listing_reads_the_folder_and_that_it_exists(tmp_path: Path) -> None:
    recording = Recording(0, 2, "/root/", None, list[str]().append)
    recording.begin_thread(0)
    recording.is_on = True
    points = FilePoints(recording, Paths(str(tmp_path), "/root"))
    for path in (tmp_path, tmp_path / "out"):
        points.on_call("os.listdir", (str(path),))
    ((_, events),) = recording.sent()
    found = [[(str(use.thing.kind), use.thing.name) for use in uses] for *_, uses, _, _ in events]
    assert found == [[("folder", ".")], [("folder", "out"), ("entry", "out")]]
