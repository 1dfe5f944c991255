"""``ecosystem.json`` as coloured tables: a row for each part, a column for each guarantee."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from ddp_conformance.frontend import explain
from ddp_conformance.frontend.screen import titles
from docutils.nodes import make_id

_SIGNS = {"kept": "✓", "broken": "✕", "refuses": "!", "says nothing": "-"}
_LEGEND = {
    "kept": "kept",
    "broken": "broken; point at it to see the reason, which is also below",
    "refuses": "all ranks raise an error that says why",
    "says nothing": "does not bind this part",
}


def with_tables(page: str, path: Path) -> str:
    """The page of the ecosystem with the tables of this document before its first section."""
    introduction, heading, rest = page.partition("\n## ")
    tables = f"\n## At a glance\n\n```{{raw}} html\n{tables_of(path)}\n```\n"
    return f"{introduction}{tables}{heading}{rest}"


def tables_of(path: Path) -> str:
    """The tables and what their signs mean, as HTML."""
    document = json.loads(path.read_text(encoding="utf-8"))
    parts = [(library, part) for library in document["libraries"] for part in library["parts"]]
    groups = list(dict.fromkeys(_group(part) for _, part in parts))
    tables = [_table(group, [one for one in parts if _group(one[1]) == group]) for group in groups]
    signs = "".join(
        f'<li><span class="verdict {_class(word)}">{_SIGNS[word]}</span> {text}</li>'
        for word, text in _LEGEND.items()
    )
    return "\n".join([f'<ul class="verdict-signs">{signs}</ul>', *tables])


def _group(part: Mapping[str, Any]) -> str:
    return min(part["guarantees"], key=lambda name: (name.startswith("WIN"), name))[:3]


def _table(group: str, parts: list[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    columns = sorted({name for _, part in parts for name in part["guarantees"]}, key=_order(group))
    head = "".join(f'<th scope="col">{_guarantee(name)}</th>' for name in columns)
    bodies = []
    for place, own in groupby(parts, key=lambda one: make_id(_heading(one[0]))):
        rows = [(library, part) for library, part in own]
        name = escape(_heading(rows[0][0]))
        first = (
            f'<tr><th scope="rowgroup" colspan="{len(columns) + 1}">'
            f'<a href="#{place}">{name}</a></th></tr>'
        )
        shown = "".join(_row(part, columns, place) for _, part in rows)
        bodies.append(f"<tbody>{first}{shown}</tbody>")
    caption = f"{group}: {escape(titles()[group])}"
    return (
        f'<div class="verdicts" tabindex="0" role="region" aria-label="{caption}">'
        f"<table><caption>{caption}</caption><thead><tr><th></th>{head}</tr></thead>"
        f"{''.join(bodies)}</table></div>"
    )


def _order(group: str) -> Any:
    return lambda name: (not name.startswith(group), name)


def _heading(library: Mapping[str, Any]) -> str:
    return f"{library['name']} {library['version']}"


def _row(part: Mapping[str, Any], columns: Iterable[str], place: str) -> str:
    cells = "".join(_cells(part, columns, place))
    return f'<tr><th scope="row">{_code(part["use"])}</th>{cells}</tr>'


def _cells(part: Mapping[str, Any], columns: Iterable[str], place: str) -> Iterator[str]:
    for name in columns:
        word = part["guarantees"].get(name)
        if word is None:
            yield "<td></td>"
            continue
        title = escape(f"{name}: {word}{_why(part, name)}")
        sign = f'<span aria-label="{word}">{_SIGNS[word]}</span>'
        shown = f'<a href="#{place}">{sign}</a>' if word == "broken" else sign
        yield f'<td class="verdict {_class(word)}" title="{title}">{shown}</td>'


def _why(part: Mapping[str, Any], guarantee: str) -> str:
    breaches = (one for one in part["breaches"] if guarantee in one["guarantees"])
    return "".join(f". {one['why']}. Seen: {one['witness']}" for one in breaches)


def _class(word: str) -> str:
    return word.replace(" ", "-")


def _code(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _guarantee(name: str) -> str:
    statement = explain.entry(name).split("\n\n")[1].replace("\n", " ")
    return f'<a href="guarantees/{name}.html" title="{escape(statement)}">{name}</a>'
