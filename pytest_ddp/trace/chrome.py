"""The timeline in the trace-event format of Chrome, which Perfetto opens.

A rank is a process of the trace. It has a thread for its phases, and as many threads for its
collectives as overlap: slices of one thread must be nested, and asynchronous collectives are not.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from pytest_ddp.trace.timeline import Collective, Timeline, TracedPhase, Track

Event: TypeAlias = dict[str, Any]

PHASES = 1
"""Thread identifier of the phases; those of the collectives follow."""


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """The JSON object: metadata first, then slices and instants by time."""
    events = [event for track in timeline.tracks for event in _slices(timeline, track)]
    # If slices begin together, the longer one is the outer one and comes first.
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
    return {
        "traceEvents": [*_metadata(timeline), *events],
        "displayTimeUnit": "ms",
        "otherData": {
            "test": timeline.test,
            "verdict": timeline.verdict or ("failed" if timeline.failed else "passed"),
            "backend": timeline.backend,
            **_clocks(timeline),
        },
    }


def _clocks(timeline: Timeline) -> dict[str, Any]:
    """The uncertainty of each machine's times, and the machines that were lost."""
    of_others = {t.machine: t.uncertainty / 1e3 for t in timeline.tracks if t.uncertainty}
    lost = sorted({track.machine for track in timeline.tracks if track.is_lost})
    entries = {"clock_uncertainty_us": of_others, "lost_machines": lost}
    return {name: value for name, value in entries.items() if value}


def rows_of(collectives: Iterable[Collective]) -> list[list[Collective]]:
    """Distribute collectives over the fewest rows in which none overlap."""
    rows: list[list[Collective]] = []
    for call in sorted(collectives, key=lambda call: call.begin):
        free = (row for row in rows if row[-1].end <= call.begin)
        row = next(free, None)
        if row is None:
            rows.append(row := [])
        row.append(call)
    return rows


def details(timeline: Timeline, call: Collective) -> dict[str, Any]:
    """The attributes of a collective by name, without unknown ones."""
    message = call.operation in ("send", "recv")
    attributes = {
        "group": timeline.group(call.group),
        "number": call.number or None,
        "elements": call.elements,
        "dtype": call.dtype,
        "bytes": call.bytes,
        "reduce_op": call.reduce_op,
        ("peer" if message else "root"): call.root,
        "state": call.error or call.state.value,
        "site": str(call.site or "C++"),
    }
    return {name: value for name, value in attributes.items() if value is not None}


def title(call: Collective) -> str:
    """``all_reduce #7``."""
    return f"{call.operation} #{call.number}" if call.number else call.operation


# ------------------------------------------------------------------ events


def _metadata(timeline: Timeline) -> Iterator[Event]:
    for track in timeline.tracks:
        yield _meta(track.rank, 0, "process_name", name=track.name)
        yield _meta(track.rank, 0, "process_sort_index", sort_index=track.rank)
        yield _meta(track.rank, PHASES, "thread_name", name="phases")
        for row in range(len(rows_of(track.events.collectives))):
            tid = PHASES + 1 + row
            yield _meta(track.rank, tid, "thread_name", name="collectives")
            yield _meta(track.rank, tid, "thread_sort_index", sort_index=tid)


def _meta(pid: int, tid: int, kind: str, **args: object) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _slices(timeline: Timeline, track: Track) -> Iterator[Event]:
    for phase in track.events.phases:
        args = {"site": str(phase.site)} if phase.site else {}
        yield _slice(track.rank, PHASES, phase.name, "phase", phase, args)
    for row, calls in enumerate(rows_of(track.events.collectives)):
        for call in calls:
            args = details(timeline, call)
            yield _slice(track.rank, PHASES + 1 + row, title(call), "collective", call, args)
    final = track.stand
    yield {
        "ph": "i",
        "s": "p",
        "name": f"{final.end}: {final.words}" if final.words else str(final.end),
        "cat": "end",
        "pid": track.rank,
        "tid": PHASES,
        "ts": final.at / 1e3,
        "args": {"place": str(final.place)} if final.place else {},
    }


def _slice(
    pid: int, tid: int, name: str, kind: str, span: TracedPhase | Collective, args: dict[str, Any]
) -> Event:
    duration = max(span.end - span.begin, 0)
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": pid,
        "tid": tid,
        "ts": span.begin / 1e3,
        "dur": duration / 1e3,
        "args": args,
    }
