"""``docs/ecosystem.md`` and ``docs/ecosystem.json``, from the verdicts of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ddp_conformance.frontend.report import SPEC

from conformance.ecosystem.frame.libraries import Library
from conformance.ecosystem.frame.parts import Breach, Part

FORMAT = "ddp-conformance-ecosystem"

VERSION = 1
"""The version of the document's form."""

INTRODUCTION = """\
# Who keeps which guarantee

Parts of released libraries under the guarantees of [SPEC.md](../conformance/SPEC.md) {spec}, on
two and three ranks with gloo. Made by `make ecosystem`; the same as JSON is in
[ecosystem.json](ecosystem.json).

- kept: nothing that breaks it was seen, by the means that SPEC names
- broken: at one of the world sizes; shown below by a script without our code, run on two ranks with
  `torchrun --standalone --nproc-per-node=2 FILE`
- refuses: all ranks raise an error that says why
- says nothing: the guarantee does not bind a part that does not claim what it asks for

A guarantee that a part breaks is not always the part's fault: some say in their documents what they
do, and what they do is not enough. The reason says which it is. {count} parts of {libraries}
libraries.
"""

_CALL_SITE = re.compile(r" \([^()]*:\d+\)|(?<= )/\S*/(?=\S+\.py:\d+)")
"""Matches the line of a call and the folder of a file: places on the machine of the run."""

WORDS = ("kept", "broken", "refuses", "says nothing")


def document(judged: Sequence[Mapping[str, Any]], libraries: Sequence[Library]) -> dict[str, Any]:
    """All verdicts by library and part; ``judged`` are those of a conformance report."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "spec": SPEC,
        "libraries": [
            {
                "name": library.distribution,
                "version": library.version,
                "parts": [_part(part, judged) for part in library.parts],
            }
            for library in libraries
        ],
    }


def _part(part: Part, judged: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    own = [one for one in judged if one["subject"] == part.subject.name]
    guarantees = sorted({one["guarantee"] for one in own})
    return {
        "name": part.subject.name,
        "kind": part.subject.kind,
        "use": part.use,
        "traits": sorted(part.subject.traits),
        "world_sizes": list(part.world_sizes),
        "guarantees": {name: _word(part, name, own) for name in guarantees},
        "breaches": [_breach(breach, own) for breach in part.breaches],
    }


def _word(part: Part, guarantee: str, own: Iterable[Mapping[str, Any]]) -> str:
    """One word for all world sizes. Raises ``ValueError`` for a verdict that is not declared."""
    verdicts = {one["verdict"] for one in own if one["guarantee"] == guarantee}
    if "expected" in verdicts and guarantee in part.undecided:
        return "says nothing"
    if "expected" in verdicts:
        return "refuses" if guarantee in part.refuses else "broken"
    words = {"passed": "kept", "not bound": "says nothing"}
    if len(verdicts) != 1 or not verdicts <= words.keys():
        raise ValueError(f"{part.subject.name} {guarantee}: {', '.join(sorted(verdicts))}")
    return words[verdicts.pop()]


def _breach(breach: Breach, own: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = (one["witness"] for one in own if one["guarantee"] == breach.guarantees[0])
    witness = _CALL_SITE.sub("", next(lines[0] for lines in first if lines))
    return {
        "guarantees": list(breach.guarantees),
        "why": breach.why,
        "issue": breach.issue,
        "witness": witness,
        "script": f"conformance/ecosystem/truth/{breach.truth}",
    }


def render(content: Mapping[str, Any]) -> str:
    """The page of a document."""
    libraries = content["libraries"]
    count = sum(len(library["parts"]) for library in libraries)
    lines = [
        INTRODUCTION.format(spec=content["spec"], count=count, libraries=len(libraries)).rstrip()
    ]
    for library in libraries:
        lines += ["", f"## {library['name']} {library['version']}", "", *_table(library["parts"])]
        for part in library["parts"]:
            for breach in part["breaches"]:
                lines += ["", *_accusation(part, breach)]
    return "\n".join(lines) + "\n"


def _table(parts: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    yield _row(["part", *WORDS])
    yield _row(["---"] * (1 + len(WORDS)))
    for part in parts:
        verdicts = part["guarantees"]
        cells = [", ".join(name for name in verdicts if verdicts[name] == word) for word in WORDS]
        yield _row([part["use"], *cells])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _accusation(part: Mapping[str, Any], breach: Mapping[str, Any]) -> Iterator[str]:
    yield f"**{', '.join(breach['guarantees'])}**: {part['use']}."
    issue = f" ({breach['issue']})" if breach["issue"] else ""
    yield f"{_sentence(breach['why'])}{issue}. Seen: {breach['witness']}."
    yield f"Shown by [{breach['script'].rpartition('/truth/')[2]}](../{breach['script']})."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
