"""The page of failure codes, made of the tables of codes.

``python -m tests.docs.troubleshooting`` writes it anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_ddp.verdict.codes import Entry, by_code

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
_END = "## By error text\n"
"""Up to here the page is written by hand."""


def render() -> str:
    """The page as it has to be."""
    begin, _, _ = PAGE.read_text().partition(_END)
    return begin + "\n".join((_END, *_index(), *map(_section, by_code().values())))


def _index() -> Iterator[str]:
    yield "| text | code |\n| --- | --- |"
    for entry in by_code().values():
        for text in entry.texts:
            words = text.replace("|", "\\|")
            yield f"| `{words}` | [{entry.code}](#{entry.code.lower()}) |"
    yield ""


def _section(entry: Entry) -> str:
    causes = "\n".join(f"- {cause}" for cause in entry.causes)
    fixes = "\n".join(f"- {fix}" for fix in entry.fixes)
    return (
        f"## {entry.code}\n\n**{entry.title}.** {entry.meaning}\n\n"
        f"Likely causes:\n\n{causes}\n\nWhat to do:\n\n{fixes}\n"
    )


if __name__ == "__main__":
    PAGE.write_text(render())
