"""A page for each guarantee, made of ``SPEC.md`` and the mutants and benign variants."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ddp_conformance.framework.registry import known_ids
from ddp_conformance.frontend import explain

_INTRODUCTION = """\
Each page has one rule: why it is there, code that breaks it, code that looks alike and keeps it,
how it is checked, and where it was broken before. [Check your own parts](../conformance.md).
"""
_FIELDS = re.compile(r"^- \*\*([\w ]+)\.\*\* (.*(?:\n  .*)*)", re.MULTILINE)
"""A field of an entry, such as its rationale."""
_HEADINGS = {
    "Rationale": "Why",
    "Check": "How it is checked",
    "Allowances": "What may differ",
    "Applies to": "What it applies to",
    "Known exceptions": "Known exceptions",
}
_AROUND_EXAMPLES = ("Rationale", "Allowances"), ("Check", "Applies to", "Known exceptions")


def write(folder: Path) -> None:
    """Write the pages into a folder that has no others.

    A page that is as it was is not written again, so that Sphinx need not read it again.
    """
    folder.mkdir(exist_ok=True)
    pages = dict(_pages(explain.SPEC.read_text(encoding="utf-8")))
    for left in {path.name for path in folder.glob("*.md")} - set(pages):
        (folder / left).unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _pages(spec: str) -> Iterator[tuple[str, str]]:
    introduction, *sections = re.split(r"^## ", spec, flags=re.MULTILINE)
    _, _, preamble = introduction.partition("\n")
    *groups, versions = sections
    ids = known_ids()
    rows = []
    for group in groups:
        heading, _, text = group.partition("\n")
        code, _, title = heading.partition(": ")
        about = _linked(text.partition("\n### ")[0].strip())
        members = [each for each in ids if each.startswith(code)]
        rules = [f"| [{each}]({each}.md) | {_statement(each)} |" for each in members]
        rows += [f"| **[{code}]({code}.md)** | **{title}** |", *rules]
        yield f"{code}.md", _page(f"# {code}: {title}", about, _table(rules), _toctree(members))
        for each in members:
            yield f"{each}.md", _guarantee(each, f"{title[0].upper()}{title[1:]}", code)
    codes = [group.partition(":")[0] for group in groups]
    about = f"## How to read them\n\n{_linked(preamble.strip())}"
    toctree = _toctree([*codes, "versions"])
    yield "index.md", _page("# The guarantees", _INTRODUCTION, _table(rows), about, toctree)
    yield "versions.md", _page("# Versions of the guarantees", _linked(versions.partition("\n")[2]))


def _guarantee(each: str, group: str, code: str) -> str:
    text = explain.entry(each)
    heading = text.partition("\n")[0]
    fields = dict(_FIELDS.findall(text))
    level = re.search(r"\((.*)\)", heading)
    assert level is not None, heading
    star = " ★" if "★" in heading else ""
    first, second = (
        [f"## {_HEADINGS[name]}\n\n{_own(fields[name])}" for name in names if name in fields]
        for names in _AROUND_EXAMPLES
    )
    return _page(
        f"# {each}{star}",
        f"**{_statement(each)}**",
        f"{level[1]}. [{group}]({code}.md).",
        *first,
        *_examples(each),
        *second,
        f"## Where it comes from\n\n{_own(fields['Origin'])}",
    )


def _examples(each: str) -> Iterator[str]:
    shown = explain.examples(each)
    if shown is None:
        yield "Its examples use Lightning, which is not installed where this page was made."
        return
    yield f"## A part that breaks it\n\nThe defect: {shown.broken.defect}."
    yield f"```python\n{shown.broken_code.strip()}\n```"
    yield f"## A part that keeps it\n\n{shown.kept.likeness[0].upper()}{shown.kept.likeness[1:]}."
    yield f"```python\n{shown.kept_code.strip()}\n```"
    if shown.others:
        others = [f"- `{one.subject.name}`: {one.defect}" for one in shown.others]
        yield "## More parts that break it\n\n" + "\n".join(others)


def _statement(each: str) -> str:
    return explain.entry(each).split("\n\n")[1].replace("\n", " ")


def _own(field: str) -> str:
    return _linked(re.sub(r"^  ", "", field, flags=re.MULTILINE))


def _linked(text: str) -> str:
    """The text with a link at each id of a guarantee."""
    known = "|".join(known_ids())
    return re.sub(rf"(?<![\w`])({known})\b", r"[\1](\1.md)", text)


def _table(rows: list[str]) -> str:
    return "\n".join(["| guarantee | rule |", "|---|---|", *rows])


def _toctree(names: list[str]) -> str:
    return "\n".join(["```{toctree}", ":hidden:", "", *names, "```"])


def _page(*parts: str) -> str:
    return "\n\n".join(parts) + "\n"
