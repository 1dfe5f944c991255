"""The pictures of the pages show what runs of their examples do."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.docs.screens import HANG, TERMINAL, draw_hang, render

REMEDY = "python -m tests.docs.screens draws it"
_SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.exhaustive
def test_picture_of_a_terminal_is_of_a_real_run() -> None:
    assert TERMINAL.read_text(encoding="utf-8") == render(), REMEDY


def _shown(picture: str) -> list[str]:
    """What each rank did, without times, with which labels may come and go.

    And without the end of its last call: ranks are ended one after the other, so that a rank may
    see its peer's end, as a ``RuntimeError``, before its own.
    """
    root = ElementTree.fromstring(picture)
    titles = (
        title.text or "" for rank in root.iter(f"{_SVG}g") for title in rank.iter(f"{_SVG}title")
    )
    lines = (
        re.sub(r"from [\d.]+.*|\n(is not complete|RuntimeError)$", "", title) for title in titles
    )
    return sorted({line for line in lines if re.match(r"(all_reduce|rank \d)", line)})


def test_picture_of_a_hang_shows_both_ranks() -> None:
    picture = HANG.read_text(encoding="utf-8")
    shown = "\n".join(_shown(picture))
    for rank in (0, 1):
        assert re.search(rf"^rank {rank} waits$", shown, re.MULTILINE)
    assert "all_reduce #1" in shown
    assert "prefers-color-scheme: dark" in picture
    assert not re.search(r"@import|url\((?!#)|href", picture)


@pytest.mark.exhaustive
def test_picture_of_a_hang_is_of_a_real_run() -> None:
    assert _shown(HANG.read_text(encoding="utf-8")) == _shown(draw_hang()), REMEDY
