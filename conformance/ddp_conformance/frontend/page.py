"""The report as one HTML file, which loads nothing: a row for each guarantee."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any, TypeAlias

from pytest_ddp.trace.styles import BASE

Entry: TypeAlias = Mapping[str, Any]
"""A mapping of the report's document."""

_STYLE = (
    BASE
    + """
th, td { padding: 4px 12px 4px 0; border-bottom: 1px solid var(--grid); }
thead th { color: var(--soft); font-weight: 500; white-space: nowrap; }
tbody th { white-space: nowrap; font-weight: 600; }
td.number { white-space: nowrap; }
details table { font-size: 13px; }
.failed, .unknown, .survived { color: var(--bad); font-weight: 600; }
.passed, .killed { color: var(--good); } .expected { color: var(--waits); }
.not-bound, .skipped { color: var(--soft); }
pre { margin: 0; white-space: pre-wrap; }
"""
)


def page(document: Entry, headline: str, titles: Mapping[str, str]) -> str:
    """The HTML of a report's document; ``titles`` has what each group is about."""
    facts = [
        f"guarantees of {document['spec']}",
        f"python {document['python']}",
        f"torch {document['torch']}",
        f"backend {document['backend']}",
        f"seed {document['nemesis_seed']}",
    ]
    groups = groupby(document["guarantees"], key=lambda one: str(one["id"])[:3])
    sections = [_group(prefix, list(own), document, titles) for prefix, own in groups]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            "<title>Guarantees</title>",
            f"<style>{_STYLE}</style></head><body><main>",
            f"<h1>{escape(headline)}</h1>",
            f'<p class="facts">{escape(" · ".join(facts))}</p>',
            *sections,
            *_warnings(document["warnings"]),
            "</main></body></html>\n",
        ]
    )


def _group(
    prefix: str, guarantees: Sequence[Entry], document: Entry, titles: Mapping[str, str]
) -> str:
    verdicts, mutants = _by_guarantee(document["verdicts"]), _by_guarantee(document["mutants"])
    rows = [_row(one, verdicts[one["id"]], mutants[one["id"]]) for one in guarantees]
    title = f"{prefix}: {titles[prefix]}" if prefix in titles else prefix
    columns = ("", "guarantee", "verdicts", "mutants killed", "seconds")
    return f"<h2>{escape(title)}</h2>{_table(columns, rows)}"


def _by_guarantee(entries: Iterable[Entry]) -> defaultdict[str, list[Entry]]:
    found: defaultdict[str, list[Entry]] = defaultdict(list)
    for one in entries:
        found[one["guarantee"]].append(one)
    return found


def _row(guarantee: Entry, verdicts: Sequence[Entry], mutants: Sequence[Entry]) -> str:
    star = " *" if guarantee["starred"] else ""
    counts = ", ".join(_word(word, f"{n} {word}") for word, n in guarantee["verdicts"].items())
    tried = [one for one in mutants if one["verdict"] != "skipped"]
    names = {one["mutant"] for one in tried}
    alive = {one["mutant"] for one in tried if one["verdict"] == "survived"}
    killed = f"{len(names - alive)} of {len(names)}" if names else ""
    return (
        f'<tr id="{guarantee["id"]}"><th scope="row">{guarantee["id"]}{star}</th>'
        f"<td>{escape(guarantee['statement'])}{_details(verdicts, mutants)}</td>"
        f"<td>{counts}</td>"
        f'<td class="number">{_word("survived" if alive else "killed", killed)}</td>'
        f'<td class="number">{guarantee["seconds"]:.1f}</td></tr>'
    )


def _details(verdicts: Sequence[Entry], mutants: Sequence[Entry]) -> str:
    """Each part and each mutant, with what proves its verdict."""
    broken = {"failed", "unknown", "survived"}
    is_open = " open" if any(one["verdict"] in broken for one in (*verdicts, *mutants)) else ""
    parts = [
        f"<tr><td>{escape(_named(one))}</td><td>{one['world_size']}</td>"
        f"<td>{_word(one['verdict'], one['verdict'])}</td><td>{_evidence(one)}</td></tr>"
        for one in sorted(verdicts, key=lambda one: (_named(one), one["world_size"]))
    ]
    killers = [
        f"<tr><td>{escape(one['mutant'])}</td><td>{one['world_size']}</td>"
        f"<td>{_word(one['verdict'], one['verdict'])}</td><td>{escape(one['defect'])}</td></tr>"
        for one in sorted(mutants, key=lambda one: (one["mutant"], one["world_size"]))
    ]
    tables = [_table(("part", "ranks", "verdict", "why"), parts)] if parts else []
    tables += [_table(("mutant", "ranks", "", "defect"), killers)] if killers else []
    names = {_named(one) for one in verdicts}, {one["mutant"] for one in mutants}
    counted = zip(names, ("part", "mutant"), strict=True)
    text = ", ".join(f"{len(own)} {what}{'s' * (len(own) != 1)}" for own, what in counted if own)
    return f"<details{is_open}><summary>{text}</summary>{''.join(tables)}</details>"


def _named(verdict: Entry) -> str:
    return f"{verdict['system']}: {verdict['subject']}" if verdict["system"] else verdict["subject"]


def _evidence(verdict: Entry) -> str:
    witness = "\n".join(verdict["witness"])
    return escape(verdict["reason"]) + (f"<pre>{escape(witness)}</pre>" if witness else "")


def _word(word: str, text: str) -> str:
    return f'<span class="{word.replace(" ", "-")}">{escape(text)}</span>' if text else ""


def _table(columns: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _warnings(warnings: Sequence[Entry]) -> Iterator[str]:
    if warnings:
        rows = [
            f"<tr><td>{one['count']}</td><td><pre>{escape(one['text'])}</pre></td></tr>"
            for one in warnings
        ]
        yield f"<h2>Warnings of other libraries</h2>{_table(('times', 'warning'), rows)}"
