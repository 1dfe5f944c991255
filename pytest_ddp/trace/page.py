"""The page of a failed test: one file, which loads no other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from urllib.parse import quote

from pytest_ddp.trace.lanes import colour_of, picture, short_place
from pytest_ddp.trace.scale import time_words
from pytest_ddp.trace.style import STYLE
from pytest_ddp.trace.timeline import End, Timeline, Track


def page(timeline: Timeline) -> str:
    """The HTML document."""
    name = escape(timeline.test)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{name}</title>",
            f"<style>{STYLE}</style></head><body><main>",
            f"<h1>{escape(timeline.verdict or 'failed')}</h1>",
            f'<p class="facts">{" · ".join(_facts(timeline))}</p>',
            f'<ul class="legend">{"".join(_legend(timeline))}</ul>',
            f"<figure>{picture(timeline)}</figure>",
            _table(timeline.tracks),
            "</main></body></html>\n",
        ]
    )


def index(pages: Mapping[str, str], traces: Iterable[str]) -> str:
    """The page of the folder.

    Args:
        pages: the beginning of each page of a failed test, by the name of its file.
        traces: names of the files that Perfetto opens.
    """
    failed = "".join(
        f'<tr><th scope="row"><a href="{quote(name)}">{_within(head, "title") or escape(name)}</a>'
        f"</th><td>{_within(head, 'h1')}</td></tr>"
        for name, head in pages.items()
    )
    others = "".join(f'<li><a href="{quote(name)}">{escape(name)}</a></li>' for name in traces)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><title>Traces of ddp tests</title>',
            f"<style>{STYLE}</style></head><body><main>",
            f"<h1>Failed tests</h1><table><tbody>{failed}</tbody></table>",
            f'<h1>Traces</h1><p class="facts">for ui.perfetto.dev</p><ul>{others}</ul>',
            "</main></body></html>\n",
        ]
    )


def _within(head: str, tag: str) -> str:
    """The content of an element of one of our pages, unescaped."""
    return head.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]


def _facts(timeline: Timeline) -> Iterator[str]:
    yield f"<code>{escape(timeline.test)}</code>"
    ranks = len(timeline.tracks)
    yield f"{ranks} rank{'s' * (ranks != 1)}, {escape(timeline.backend)}"
    yield time_words(timeline.duration)
    if any(track.events.truncated for track in timeline.tracks):
        yield "the traces were full before the end"
    uncertain = {track.machine: track.uncertainty for track in timeline.tracks if track.uncertainty}
    for machine, uncertainty in uncertain.items():
        yield f"times of {escape(machine)} ± {time_words(uncertainty)}"
    for machine in sorted({track.machine for track in timeline.tracks if track.is_lost}):
        yield f"the last events of ranks were lost with {escape(machine)}"


def _legend(timeline: Timeline) -> Iterator[str]:
    calls = [call for track in timeline.tracks for call in track.events.collectives]
    operations: dict[str, str] = {}
    for call in calls:
        operations.setdefault(call.operation, colour_of(call.operation))
    for operation, colour in sorted(operations.items()):
        yield f'<li><i class="op-{colour}"></i>{escape(operation)}</li>'
    yield '<li><i class="unfinished"></i>never completed, or failed</li>'
    yield '<li><i class="inner"></i>phase</li>'
    yield '<li><i class="silent"></i>silence, not to scale</li>'


def _table(tracks: Iterable[Track]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(track.name)}</th>'
        f'<td><span class="pill {_pill(track.stand.end)}">{track.stand.end}</span></td>'
        f"<td>{escape(track.stand.words)}</td><td><code>{escape(short_place(track.stand.place))}</code></td></tr>"
        for track in tracks
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("", "at the end", "what", "where"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _pill(end: End) -> str:
    return {End.ENDED: "good", End.SKIPPED: "good", End.WAITS: "waits"}.get(end, "bad")
