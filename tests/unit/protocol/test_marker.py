"""The page that shows what a rank was doing, also of a rank that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddp.protocol.status_page import (
    AREA,
    PHASE,
    SEEN,
    SIZE,
    StatusNote,
    StatusPage,
    cut_off,
    note_of,
    read,
    seen_note_of,
)
from tests.unit.standings import code_line

KILLED = """
import os, signal, sys
from pytest_ddp.protocol.rank_status import CodeLine
from pytest_ddp.protocol.status_page import PHASE, StatusPage as Page, note_of
page = Page(sys.argv[1])
page.write(PHASE, note_of(["call"], None, 1))
line = CodeLine("/src/test_it.py", 12, "test_it")
page.write(PHASE, note_of(["call", "DDP construction"], line, 1))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_new_page_has_no_note(tmp_path: Path) -> None:
    StatusPage(str(tmp_path / "page"))
    assert read(tmp_path / "page") == StatusNote()


def test_missing_page_is_read_as_no_note(tmp_path: Path) -> None:
    assert read(tmp_path / "page") == StatusNote()


@pytest.mark.parametrize("size", [0, 1, SIZE - 1, SIZE + 1])
def test_file_of_another_size_is_read_as_no_note(tmp_path: Path, size: int) -> None:
    (tmp_path / "page").write_bytes(b"\1" * size)
    assert read(tmp_path / "page") == StatusNote()


def test_last_note_is_read(tmp_path: Path) -> None:
    page = StatusPage(str(tmp_path / "page"))
    for number in range(5):
        page.write(PHASE, note_of(("call", f"step {number}"), code_line(f"a.py:{number} in f"), 1))
        assert read(tmp_path / "page") == StatusNote(
            ("call", f"step {number}"), code_line(f"a.py:{number} in f")
        )


def test_sight_of_the_phase_is_read(tmp_path: Path) -> None:
    page = StatusPage(str(tmp_path / "page"))
    note = note_of(("call", "backward"), code_line("a.py:1 in f"), 1)
    page.write(PHASE, note)
    for line in range(2, 5):
        page.write(SEEN, seen_note_of(("call", "backward"), code_line(f"b.py:{line} in g"), note))
        assert read(tmp_path / "page") == StatusNote(
            ("call", "backward"), code_line("a.py:1 in f"), code_line(f"b.py:{line} in g")
        )


def test_lost_channel_is_read_whatever_the_main_thread_notes_then(tmp_path: Path) -> None:
    page = StatusPage(str(tmp_path / "page"))
    page.write(SEEN, seen_note_of(("cut off",), code_line("cut off:1"), b""))
    assert not read(tmp_path / "page").cut_off
    page.write(SEEN, cut_off())
    page.write(PHASE, note_of(("call", "backward"), code_line("a.py:1 in f"), 1))
    assert read(tmp_path / "page") == StatusNote(
        ("call", "backward"), code_line("a.py:1 in f"), cut_off=True
    )


def test_sight_shows_that_the_phase_is_over(tmp_path: Path) -> None:
    """The line that began the phase that is over is not that of the wider one."""
    page = StatusPage(str(tmp_path / "page"))
    note = note_of(("call", "construction of Net"), code_line("a.py:1 in f"), 1)
    page.write(PHASE, note)
    page.write(SEEN, seen_note_of(("call",), code_line("b.py:2 in g"), note))
    assert read(tmp_path / "page") == StatusNote(("call",), None, code_line("b.py:2 in g"))


def test_sight_of_another_phase_is_old(tmp_path: Path) -> None:
    page = StatusPage(str(tmp_path / "page"))
    old, new = (
        note_of(phase, code_line("a.py:1 in f"), 1)
        for phase in (("call", "step"), ("call", "backward"))
    )
    page.write(PHASE, old)
    page.write(SEEN, seen_note_of(("call", "step"), code_line("b.py:2 in g"), old))
    page.write(PHASE, new)
    assert read(tmp_path / "page") == StatusNote(("call", "backward"), code_line("a.py:1 in f"))


def test_sight_of_another_test_is_old(tmp_path: Path) -> None:
    page = StatusPage(str(tmp_path / "page"))
    page.write(PHASE, note_of(("call",), None, 1))
    page.write(SEEN, seen_note_of(("call",), code_line("b.py:2 in g"), note_of(("call",), None, 1)))
    page.write(PHASE, note_of(("call",), None, 2))
    assert read(tmp_path / "page") == StatusNote(("call",))


def test_shorter_note_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    page = StatusPage(str(tmp_path / "page"))
    for text in ("a long note " * 5, "another long note " * 5, "short"):
        page.write(PHASE, note_of((text,), None, 1))
    assert read(tmp_path / "page").phase == ("short",)


@pytest.mark.parametrize("text", ["x" * 10_000, "ä" * 10_000, "\N{BEETLE}" * 10_000])
def test_too_long_a_note_is_cut(tmp_path: Path, text: str) -> None:
    page = StatusPage(str(tmp_path / "page"))
    note = note_of((text,), code_line("a.py:1 in f"), 1)
    page.write(PHASE, note)
    (phase,) = read(tmp_path / "page").phase
    assert len(phase.encode()) > 900
    assert phase.rstrip("\ufffd") == text[: len(phase.rstrip("\ufffd"))]
    page.write(SEEN, seen_note_of(("call",), code_line("b.py:2 in g"), note))
    assert read(tmp_path / "page") == StatusNote(("call",), None, code_line("b.py:2 in g"))


def test_line_breaks_and_surrogates_do_no_harm(tmp_path: Path) -> None:
    page = StatusPage(str(tmp_path / "page"))
    note = note_of(("call", "two\nlines\r\n and\t\udcff"), code_line("odd\nname.py:3 in f"), 1)
    page.write(PHASE, note)
    assert read(tmp_path / "page") == StatusNote(
        ("call", "two lines and ?"), code_line("odd name.py:3 in f")
    )
    page.write(SEEN, seen_note_of(("a\nb",), code_line("c\nd.py:4 in g"), note))
    assert read(tmp_path / "page") == StatusNote(("a b",), None, code_line("c d.py:4 in g"))


@pytest.mark.parametrize("area", [PHASE, SEEN])
def test_half_written_note_is_never_read(tmp_path: Path, area: int) -> None:
    """Whatever part of the copy was done when the process was killed."""
    path = tmp_path / "page"
    page = StatusPage(str(path))
    phase = note_of(("phase",), None, 1)
    page.write(PHASE, phase)
    notes = [
        note_of([f"{n}"], code_line(f"a.py:{n} in f"), 1)
        if area == PHASE
        else seen_note_of([f"{n}"], code_line("b.py:1"), phase)
        for n in range(3)
    ]
    page.write(area, notes[0])
    for note in notes[1:]:
        before, said = path.read_bytes(), read(path)
        page.write(area, note)
        after, says = path.read_bytes(), read(path)
        assert said != says
        changed = [n for n in range(SIZE) if before[n] != after[n]]
        torn = bytearray(before)
        for n in sorted(changed, key=lambda n: n % AREA == 0):
            path.write_bytes(torn)
            assert read(path) == said
            torn[n] = after[n]
        path.write_bytes(torn)
        assert read(path) == says


def test_page_survives_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "page"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=Path(__file__).parents[3])
    assert ended.returncode == -signal.SIGKILL
    assert read(path) == StatusNote(
        ("call", "DDP construction"), code_line("/src/test_it.py:12 in test_it")
    )


def test_forked_child_does_not_speak_for_its_parent(tmp_path: Path) -> None:
    page = StatusPage(str(tmp_path / "page"))
    page.write(PHASE, note_of(("of the parent",), None, 1))
    child = os.fork()
    if child == 0:
        page.write(PHASE, note_of(("of the child",), None, 1))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert read(tmp_path / "page").phase == ("of the parent",)
    page.write(PHASE, note_of(("of the parent again",), None, 1))
    assert read(tmp_path / "page").phase == ("of the parent again",)


def test_no_page_is_no_failure(tmp_path: Path) -> None:
    page = StatusPage(str(tmp_path / "missing" / "page"))
    page.write(PHASE, note_of(("call",), None, 1))
    assert read(tmp_path / "missing" / "page") == StatusNote()
