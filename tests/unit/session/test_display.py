"""Pieces of several ranks are shown in order of time, and do not pile up."""

from __future__ import annotations

import io
import math
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddp.launch.streams import Text
from pytest_ddp.session import display
from pytest_ddp.session.display import Display, LiveLine


class Config:
    """The config of a session without logging and capture plugins."""

    class pluginmanager:  # noqa: N801 - as pytest calls it
        @staticmethod
        def get_plugin(name: str) -> None: ...

        getplugin = get_plugin


class Source:
    behind: float | None = None


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Watched(LiveLine):
    def __init__(self) -> None:
        super().__init__(None)
        self.ways = 0

    def give_way(self) -> None:
        self.ways += 1


class Shown:
    """A display, a clock, two sources and what was written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> None:
        self.clock, self.live = Clock(), Watched()
        monkeypatch.setattr(display, "time", self.clock)
        monkeypatch.setattr(display, "sys", SimpleNamespace(stdout=stream))
        self.stream = stream
        self.warnings: list[str] = []
        config: Any = Config
        self.display = Display(config, self.live, self.warnings.append)
        self.sources: list[Any] = [Source(), Source()]

    def take(self, source: int, *moments: float, behind: float | None = None) -> None:
        self.sources[source].behind = behind
        pieces = [Text(moment, "stdout", f"{moment:.2f} ") for moment in moments]
        self.display.take(self.sources[source], [*pieces])

    def show(self, *, all_: bool = False) -> list[float]:
        self.display.show(all_=all_)
        seen = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return [float(word) for word in seen.split()]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    return Shown(monkeypatch, io.StringIO())


def test_pieces_wait_for_older_ones(shown: Shown) -> None:
    assert shown.display.due_in() == math.inf
    shown.take(0, 100.0)
    assert shown.display.due_in() == pytest.approx(0.1)
    assert shown.show() == []
    assert shown.live.ways == 0
    shown.take(1, 99.99, 100.01)
    shown.clock.now = 100.105
    assert shown.display.due_in() == 0
    assert shown.show() == [99.99, 100.0]
    assert shown.live.ways == 1
    assert shown.show(all_=True) == [100.01]
    assert shown.display.due_in() == math.inf


def test_a_source_that_has_more_is_waited_for(shown: Shown) -> None:
    shown.take(0, 90.0, 91.0, behind=91.0)
    shown.take(1, 90.5, 92.0)
    assert shown.show() == [90.0, 90.5, 91.0]
    shown.take(0, 91.5)
    assert shown.show() == [91.5, 92.0]


def test_pieces_do_not_pile_up(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "_MOST", 20)
    shown.take(1, 100.0, 100.02, 100.04, 100.01, behind=1.0)
    assert shown.show() == [100.0, 100.01]
    assert shown.show() == []
    assert shown.show(all_=True) == [100.02, 100.04]


class Ascii(io.StringIO):
    encoding = "ascii"


class Broken(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError


def test_a_stream_takes_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch, Ascii())
    shown.display.take(shown.sources[0], [Text(1.0, "stdout", "ä\u2028\n")])
    shown.display.show()
    assert shown.stream.getvalue() == "\\xe4\\u2028\n"
    shown = Shown(monkeypatch, Broken())
    shown.take(0, 1.0)
    assert shown.show(all_=True) == []
