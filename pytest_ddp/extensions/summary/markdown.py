"""Results as Markdown for GitHub's job summaries and Buildkite's annotations.

Texts of tests are untrusted: they contain HTML, tables, mentions and code fences. So each character
that could be markup is written as a character reference.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator

from pytest_ddp.extensions.summary.results import Failed, Results

LIMIT = 900_000
"""Bytes of a summary. GitHub drops one of more than 1 MiB."""
_ROWS = LIMIT // 2
"""Bytes of the table, which leaves room for the texts below."""
_REASONS = 10
"""Reasons of skips: a missing GPU is visible here."""
_LONGEST_CELL = 300
_LONGEST_TEXT = 20_000
"""Characters of one test's text; beyond, its middle is left out."""
_ORDER = ("failed", "passed", "skipped", "xfailed")


def render(results: Results, title: str) -> str:
    """A heading with counts, a table of failures, and their texts in folded blocks."""
    head = [f"### {_inline(title)}: {_counts(results)}", *_remarks(results)]
    table, rows_left = _fitting((_row(failed) for failed in results.failed), _ROWS)
    if table:
        head.append("\n".join(["| test | verdict |", "|---|---|", *table]))
    used = sum(len(part.encode()) + 2 for part in head)
    texts, texts_left = _fitting(_details(results), LIMIT - used)
    if rows_left or texts_left:
        left = f"{rows_left} more failures, and {texts_left} more texts"
        texts.append(f"There was no room for {left}, which are in the files.")
    return "\n\n".join([*head, *texts]) + "\n"


def _counts(results: Results) -> str:
    if not results.reports:
        number = len(results.failed)
        return f"{number} failure{'s' * (number != 1)} reported before pytest was ended"
    counts = results.outcomes
    parts = [f"{counts[outcome]} {outcome}" for outcome in _ORDER if counts[outcome]]
    if results.outside:
        parts.append("an error outside of the tests")
    if results.interrupted:
        parts.append("interrupted")
    return ", ".join(parts) or "no test ran"


def _remarks(results: Results) -> Iterator[str]:
    for unread in results.unread:
        yield f"**Not read:** {_cell(unread)}"
    for reason, number in results.skipped.most_common(_REASONS):
        yield f"{number} skipped: {_cell(reason)}"


def _row(failed: Failed) -> str:
    return f"| {_cell(failed.name)} | {_cell(failed.verdict)} |"


def _details(results: Results) -> Iterator[str]:
    for problem in results.outside:
        yield _folded("an error outside of the tests", problem)
    for stand in results.interrupted:
        yield _folded("what was interrupted", stand)
    for failed in results.failed:
        if failed.text:
            yield _folded(failed.name, failed.text)


def _folded(name: str, text: str) -> str:
    shown = _verbatim(shortened(text.strip("\n"), _LONGEST_TEXT))
    summary = f"<details><summary>{_cell(name)}</summary>"
    return f"{summary}\n\n<pre>\n{shown}\n</pre>\n\n</details>"


def _fitting(parts: Iterable[str], size: int) -> tuple[list[str], int]:
    """The first parts that fit into this size, and the number of the others."""
    fitting: list[str] = []
    left = 0
    for part in parts:
        size -= len(part.encode()) + 2
        if left or size < 0:
            left += 1
        else:
            fitting.append(part)
    return fitting, left


def _cell(text: str) -> str:
    line = " ".join(text.split())
    return f"<code>{_inline(line[:_LONGEST_CELL] + '…' * (len(line) > _LONGEST_CELL))}</code>"


def _inline(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9\s]", lambda found: f"&#{ord(found[0])};", text)


def _verbatim(text: str) -> str:
    # "::" at the beginning of a line is a workflow command of GitHub's runner.
    return html.escape(text, quote=False).replace("::", "&#58;&#58;")


def shortened(text: str, longest: int) -> str:
    """The text, or its beginning and end with the number of characters that are left out."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters …\n{text[-half:]}"
