"""The picture: a lane for each rank, with its phases above its collectives, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from pytest_ddp.evidence.pythonstacks import shorten
from pytest_ddp.trace.chrome import details, rows_of, title
from pytest_ddp.trace.events import Collective, Phase, State
from pytest_ddp.trace.scale import Scale, time_words
from pytest_ddp.trace.timeline import End, Timeline, Track

WIDTH = 1216
"""Pixels: a page of 1280 without its margins."""
_LEFT, _RIGHT = 104, WIDTH - 26
_TOP = 34
_PHASE, _CALL = 16, 24
"""Heights of the rows."""
_PAD = 7
_BETWEEN = 10
_DEEPEST = 5
"""Levels of phases that are drawn."""
_ROWS = 6
"""Rows of overlapping collectives that are drawn."""
_NARROW = 2.5
"""Least width of a box in pixels; denser boxes are drawn as one."""
_CHARACTER = 6.4
"""Pixels of a character of a phase's name."""
_BOLD = 7.4
"""Pixels of a character in a box."""
_RIBBONS = 150
"""Boxes of one rank with which the bands between ranks are drawn; more would hide everything."""

_MARKS = {End.ENDED: "✓", End.SKIPPED: "-", End.WAITS: "…", End.STOPPED: "■"}
_CROSS = "✕"


@dataclass(frozen=True, slots=True)
class Box:
    """One collective, or several that are too close to be drawn apart."""

    calls: tuple[Collective, ...]
    x: float
    y: float
    width: float

    @property
    def first(self) -> Collective:
        return self.calls[0]


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank and its space in the picture."""

    track: Track
    top: float
    phases: float
    """Height of its rows of phases."""
    rows: Sequence[Sequence[Collective]]

    @property
    def calls_top(self) -> float:
        return self.top + _PAD + self.phases

    @property
    def bottom(self) -> float:
        return self.calls_top + max(len(self.rows), 1) * (_CALL + 2) + _PAD


def picture(timeline: Timeline) -> str:
    """The SVG element."""
    scale = Scale.of(_moments(timeline), timeline.duration, _LEFT, _RIGHT)
    lanes = list(_lanes(timeline))
    bottom = lanes[-1].bottom if lanes else _TOP
    boxes = [_boxes(lane, scale) for lane in lanes]
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {bottom + 8:.0f}" role="img" '
        f'aria-label="What each rank did over time">',
        _PATTERNS,
        *(_lane_background(lane) for lane in lanes),
        *_axis(scale, bottom),
        *_ribbons(boxes),
    ]
    for lane, own in zip(lanes, boxes, strict=True):
        parts += _lane(timeline, lane, own, scale)
    return "\n".join([*parts, "</svg>"])


_PATTERNS = (
    '<defs><pattern id="open" width="8" height="8" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect class="stripe" width="3.5" height="8"/></pattern>'
    "</defs>"
)


def _moments(timeline: Timeline) -> Iterator[int]:
    for track in timeline.tracks:
        yield track.stand.at
        for phase in track.events.phases:
            yield from (phase.begin, phase.end)
        for call in track.events.collectives:
            yield from (call.begin, call.end)


def _lanes(timeline: Timeline) -> Iterator[Lane]:
    top = float(_TOP)
    for track in timeline.tracks:
        levels = min(max((p.depth for p in track.events.phases), default=0) + 1, _DEEPEST)
        rows = rows_of(track.events.collectives)[:_ROWS]
        lane = Lane(track, top, levels * _PHASE + 4, rows)
        yield lane
        top = lane.bottom + _BETWEEN


# ------------------------------------------------------------------ axis and background


def _lane_background(lane: Lane) -> str:
    height = lane.bottom - lane.top
    return (
        f'<rect class="lane" x="0" y="{lane.top:.1f}" width="{WIDTH}" height="{height:.1f}" '
        f'rx="8" data-rank="{lane.track.rank}"/>'
    )


def _axis(scale: Scale, bottom: float) -> Iterator[str]:
    for segment in scale.segments:
        if segment.silent:
            width = segment.right - segment.left
            words = time_words(segment.end - segment.begin)
            yield (
                f'<rect class="silence" x="{segment.left:.1f}" y="{_TOP}" width="{width:.1f}" '
                f'height="{bottom - _TOP:.1f}"><title>nothing begins or ends for {words}; '
                f"not to scale</title></rect>"
                f'<text class="tick silent" x="{segment.left + width / 2:.1f}" y="{_TOP - 12}" '
                f'text-anchor="middle">⟨ {words} ⟩</text>'
            )
    last = float("-inf")
    for at in scale.ticks():
        x = scale.x(at)
        if x - last < 40 or _in_silence(scale, x):
            continue
        last = x
        yield (
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{bottom:.1f}"/>'
            f'<text class="tick" x="{x:.1f}" y="{_TOP - 12}" text-anchor="middle">'
            f"{_tick_words(at)}</text>"
        )


def _in_silence(scale: Scale, x: float) -> bool:
    """True where the label would overlap that of a silence."""
    return any(s.silent and s.left - 16 < x < s.right + 16 for s in scale.segments)


def _tick_words(at: int) -> str:
    number, _, unit = time_words(at).partition(" ")
    return f"{float(number):g} {unit}".strip()


def _ribbons(lanes: Sequence[Sequence[Box]]) -> Iterator[str]:
    """Bands that join the same collective of neighbouring ranks."""
    for upper, lower in pairwise(lanes):
        if max(len(upper), len(lower)) > _RIBBONS:
            continue
        below = {_identity(box.first): box for box in lower if len(box.calls) == 1}
        for box in upper:
            other = below.get(_identity(box.first)) if len(box.calls) == 1 else None
            if other is None or not box.first.number:
                continue
            y = box.y + _CALL
            yield (
                f'<path class="ribbon {_colour(box.first)}" d="M{box.x:.1f} {y:.1f}'
                f"H{box.x + box.width:.1f}L{other.x + other.width:.1f} {other.y:.1f}"
                f'H{other.x:.1f}Z"/>'
            )


def _identity(call: Collective) -> tuple[str, str, int]:
    return call.operation, call.group, call.number


# ------------------------------------------------------------------ one lane


def _lane(timeline: Timeline, lane: Lane, boxes: list[Box], scale: Scale) -> Iterator[str]:
    rank, final = lane.track.rank, lane.track.stand
    middle = (lane.top + lane.bottom) / 2
    yield f'<g class="rank" data-rank="{rank}">'
    machine = f"<title>{escape(lane.track.name)}</title>"
    yield f'<text class="name" x="14" y="{middle - 3:.1f}">rank {rank}{machine}</text>'
    yield f'<text class="end {_badge(final.end)}" x="14" y="{middle + 15:.1f}">{final.end}</text>'
    for phase in lane.track.events.phases:
        if phase.depth < _DEEPEST:
            yield _phase(phase, lane, scale)
    for box in boxes:
        yield _box(timeline, box)
    yield _end(lane, scale)
    yield "</g>"


def _phase(phase: Phase, lane: Lane, scale: Scale) -> str:
    left, right = scale.x(phase.begin), scale.x(phase.end)
    width = max(right - left, 1.0)
    y = lane.top + _PAD + phase.depth * _PHASE
    kind = f"phase {phase.name}" if phase.depth == 0 else "phase inner"
    lines = [phase.name, _span_words(phase), short_place(phase.site)]
    name = _fitted(phase.name, (width - 6) / _CHARACTER)
    text = f'<text class="label" x="{left + 4:.1f}" y="{y + _PHASE - 5:.1f}">{escape(name)}</text>'
    text = text if name else ""
    return (
        f'<g><rect class="{kind}" x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{_PHASE - 2}" rx="3"/>{text}{_hover(lines)}</g>'
    )


def _boxes(lane: Lane, scale: Scale) -> list[Box]:
    boxes: list[Box] = []
    for row, calls in enumerate(lane.rows):
        y = lane.calls_top + row * (_CALL + 2)
        own: list[Box] = []
        for call in calls:
            left, right = scale.x(call.begin), scale.x(call.end)
            before = own[-1] if own else None
            if before and left < before.x + before.width and right - left < _NARROW:
                width = max(right, before.x + before.width) - before.x
                own[-1] = Box((*before.calls, call), before.x, y, width)
            else:
                own.append(Box((call,), left, y, max(right - left, _NARROW)))
        boxes += own
    return boxes


def _box(timeline: Timeline, box: Box) -> str:
    call, several = box.first, len(box.calls) > 1
    open_end = not several and call.state in (State.PENDING, State.FAILED)
    rect = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{_CALL - 2}" rx="4"'
    over = f'<rect class="unfinished" {rect}/>' if open_end else ""
    text = _box_label(box)
    faint = " unawaited" if call.state is State.UNAWAITED else ""
    return (
        f'<g class="call"><rect class="op {_colour(call)}{faint}" {rect}/>{over}{text}'
        f"{_hover(_box_lines(timeline, box))}</g>"
    )


def _box_lines(timeline: Timeline, box: Box) -> list[str]:
    if len(box.calls) > 1:
        first, last = box.calls[0], box.calls[-1]
        return [
            f"{len(box.calls)} collectives, too close to be drawn apart",
            f"from {title(first)} to {title(last)}",
            f"{time_words(first.begin)} to {time_words(last.end)}",
        ]
    call = box.first
    origin = f"called at {short_place(call.site)}"
    if not call.by_python:
        origin = "issued by C++, as by DDP; its end is not recorded: shown is that of its phase"
    attributes = details(timeline, call)
    size = [] if call.elements is None else [f"{call.elements} x {call.dtype}"]
    size += [call.reduce_op] if call.reduce_op is not None else []
    peer = [f"{name} {attributes[name]}" for name in ("root", "peer") if name in attributes]
    return [
        f"{title(call)} of {timeline.group(call.group)}",
        ", ".join(size + peer),
        _span_words(call),
        origin,
        "" if call.state is State.DONE else call.error or call.state.value,
    ]


def _end(lane: Lane, scale: Scale) -> str:
    final = lane.track.stand
    last = (r for r, calls in enumerate(lane.rows) if calls and calls[-1].end >= final.at)
    y = lane.calls_top + next(last, 0) * (_CALL + 2) + _CALL / 2 - 1
    x = scale.x(final.at)
    rest = ""
    if _RIGHT - x > 14:
        rest = f'<line class="gone" x1="{x + 11:.1f}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    lines = [f"rank {lane.track.rank} {final.end}", final.words, short_place(final.place)]
    return (
        f'{rest}<g class="mark {_badge(final.end)}"><circle cx="{x:.1f}" cy="{y:.1f}" r="9"/>'
        f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">'
        f"{_MARKS.get(final.end, _CROSS)}</text>{_hover(lines)}</g>"
    )


def _badge(end: End) -> str:
    return {End.ENDED: "good", End.SKIPPED: "good", End.WAITS: "waits"}.get(end, "bad")


def _colour(call: Collective) -> str:
    return f"op-{colour_of(call.operation)}"


def colour_of(operation: str) -> str:
    """The name of an operation's colour, which its variants share."""
    for family in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        if operation.startswith(family):
            return family
    if operation in ("send", "recv"):
        return "send"
    known = ("broadcast", "reduce", "gather", "scatter", "barrier")
    return operation if operation in known else "other"


def _box_label(box: Box) -> str:
    call, room = box.first, (box.width - 6) / _BOLD
    names = (f"{len(box.calls)} collectives", f"{len(box.calls)}x")
    if len(box.calls) == 1:
        names = (title(call), f"#{call.number}" if call.number else call.operation)
    name = next((name for name in names if len(name) <= room), "")
    middle, y = box.x + box.width / 2, box.y + _CALL - 8
    text = f'<text class="op-label" x="{middle:.1f}" y="{y:.1f}" text-anchor="middle">'
    return f"{text}{escape(name)}</text>" if name else ""


def _fitted(text: str, characters: float) -> str:
    """A text shortened to its room; empty if too little of it would remain."""
    if len(text) <= characters:
        return text
    return f"{text[: int(characters) - 1]}…" if characters >= 5 else ""


def _span_words(span: Phase | Collective) -> str:
    length = time_words(max(span.end - span.begin, 0))
    return f"from {time_words(max(span.begin, 0))}, {length} long"


def short_place(place: str) -> str:
    """``file:line`` with a short name of the file."""
    file, colon, rest = place.partition(":")
    return f"{shorten(file)}{colon}{rest}" if file else ""


def _hover(lines: Sequence[str]) -> str:
    return f"<title>{escape(chr(10).join(filter(None, lines)))}</title>"
