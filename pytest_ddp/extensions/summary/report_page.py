"""The page of ``--ddp-report``: one HTML file without a script, which loads no other.

Whatever a test prints or is called is untrusted: it is escaped, and never markup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from pytest_ddp.extensions.summary import terminal_html
from pytest_ddp.trace.styles import BASE, PICTURE
from pytest_ddp.verdict.codes import by_code, explained_at

_BAD = ("failed", "error")


@dataclass(frozen=True, slots=True)
class TestRow:
    """A test that ran."""

    __test__ = False  # pytest would collect it

    nodeid: str
    is_ddp: bool
    words: tuple[str, ...]
    """Words of pytest: ``passed``; both ``failed`` and ``error`` if a fixture failed, too."""
    reason: str
    """One line on a failure, a skip or an xfail; else empty."""
    world_size: int
    """The world size of the test; 0 if it is unknown."""
    backend: str
    seconds: float
    """The seconds of all phases."""

    @property
    def is_bad(self) -> bool:
        return any(word in _BAD for word in self.words)

    @property
    def verdict(self) -> str:
        """``failed + error``, if the call and a fixture failed."""
        return " + ".join(self.words)


@dataclass(frozen=True, slots=True)
class FailureRow:
    """A phase of a test that failed, or a file that could not be collected."""

    nodeid: str
    phase: str
    text: str
    """The text as a terminal shows it, with its sequences for colours."""
    code: str
    """The code of the failure, ``DDP-001``; empty for none."""
    picture: str
    """The picture of a trace, as HTML of our own; empty for none."""
    command: str
    """The command that runs the test again."""


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """The facts about a session that its page shows."""

    began: str
    seconds: float
    directory: str
    """The folder in which pytest was called."""
    command: str
    exit_code: int
    interrupted: bool
    stopped: str
    """Why pytest stopped early, in its words; empty if it did not."""
    not_run: int
    """Tests that were selected and have no result."""
    tests: Sequence[TestRow]
    failures: Sequence[FailureRow]
    problems: Sequence[str]
    """Errors outside of the tests."""
    interrupted_ranks: str
    """What the ranks of an interrupted test were doing; empty if none was interrupted."""
    docs_url: str
    """The address of the documentation, with a slash at its end; empty if there is none."""


_STYLE = (
    BASE
    + PICTURE
    + terminal_html.STYLE
    + """
caption { text-align: left; color: var(--soft); padding: 0 0 4px; }
th, td { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--grid); }
thead th { color: var(--soft); font-weight: 500; }
tbody th { font-weight: 500; } tbody th p { margin: 0; color: var(--soft); font-weight: 400; }
.number { text-align: right; white-space: nowrap; }
thead th, tbody td { overflow-wrap: normal; }
.bad { color: var(--bad); font-weight: 600; } .good { color: var(--good); }
.other { color: var(--waits); }
a { color: inherit; } section { border-top: 2px solid var(--grid); margin-top: 26px; }
pre { margin: 8px 0; padding: 10px 12px; overflow-x: auto; border-radius: 8px;
  background: var(--lane); white-space: pre; }
pre.command { white-space: pre-wrap; overflow-wrap: anywhere; }
figure { margin: 8px 0; } details { margin: 8px 0; } li { margin: 2px 0; }
:focus-visible { outline: 2px solid var(--blue); outline-offset: 2px; }
@media (max-width: 600px) { th, td { padding-right: 7px; } table { font-size: 13px; } }
@media print { pre { white-space: pre-wrap; } }
"""
)


def page(facts: SessionFacts) -> str:
    """The HTML document."""
    headline = _headline(facts)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(headline)} - ddp tests</title>",
            f"<style>{_STYLE}</style></head><body><main>",
            f"<h1>{escape(headline)}</h1>",
            f'<p class="facts">{"<br>".join(map(escape, _lines(facts)))}</p>',
            *_table(facts),
            *(_block("Error outside of the tests", problem) for problem in facts.problems),
            *([_block("Interrupted", facts.interrupted_ranks)] if facts.interrupted_ranks else ()),
            *(_failure(number, one, facts) for number, one in enumerate(facts.failures, 1)),
            "</main></body></html>\n",
        ]
    )


# ------------------------------------------------------------------ the head


def _headline(facts: SessionFacts) -> str:
    ddp = [test for test in facts.tests if test.is_ddp]
    parts = ["interrupted"] if facts.interrupted else []
    parts.append(f"ddp tests: {_counts(ddp)}" if ddp else "no ddp test ran")
    uncollected = sum(failure.phase == "collection" for failure in facts.failures)
    bad = sum(test.is_bad for test in facts.tests if not test.is_ddp)
    for number, what in ((bad, "other test"), (uncollected, "file")):
        if number:
            failed = "failed" if what == "other test" else "not collected"
            parts.append(f"{number} {what}{'s' * (number != 1)} {failed}")
    if facts.problems:
        parts.append("an error outside of the tests")
    return "; ".join(parts)


def _counts(tests: Iterable[TestRow]) -> str:
    counted = Counter((not test.is_bad, test.verdict) for test in tests)
    return ", ".join(f"{number} {verdict}" for (_, verdict), number in sorted(counted.items()))


def _lines(facts: SessionFacts) -> Iterator[str]:
    others = [test for test in facts.tests if not test.is_ddp]
    yield f"{facts.began}, {facts.seconds:.1f} s, pytest's exit code is {facts.exit_code}"
    if others:
        yield f"tests without ranks: {_counts(others)}; those that failed are shown below"
    if facts.not_run:
        why = f" ({facts.stopped})" if facts.stopped else ""
        yield f"tests that did not run: {facts.not_run}{why}"
    yield f"{facts.command}"
    yield f"in {facts.directory}"


# ------------------------------------------------------------------ the table


def _table(facts: SessionFacts) -> Iterator[str]:
    shown = [test for test in facts.tests if test.is_ddp or test.is_bad]
    if not shown:
        return
    places: dict[str, int] = {}
    for number, failure in enumerate(facts.failures, 1):
        places.setdefault(failure.nodeid, number)
    # Failures first, each kind in the order of the session.
    rows = [_row(test, places.get(test.nodeid)) for test in sorted(shown, key=_is_good)]
    head = (
        '<th scope="col" class="verdict">verdict</th><th scope="col">test</th>'
        '<th scope="col" class="number">ranks</th><th scope="col">backend</th>'
        '<th scope="col" class="number">seconds</th>'
    )
    yield (
        "<table><caption>Each ddp test, and other tests that failed</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _breakable(backend: str) -> str:
    return escape(backend).replace(",", ",<wbr>")


def _is_good(test: TestRow) -> bool:
    return not test.is_bad


def _row(test: TestRow, place: int | None) -> str:
    name = escape(test.nodeid)
    linked = name if place is None else f'<a href="#failure-{place}">{name}</a>'
    reason = f"<p>{escape(test.reason)}</p>" if test.reason else ""
    return (
        f'<tr><td class="verdict"><span class="{_colour(test)}">{test.verdict}</span></td>'
        f'<th scope="row">{linked}{reason}</th>'
        f'<td class="number">{test.world_size or ""}</td>'
        f"<td>{_breakable(test.backend)}</td>"
        f'<td class="number">{test.seconds:.2f}</td></tr>'
    )


def _colour(test: TestRow) -> str:
    if test.is_bad:
        return "bad"
    return "good" if test.words == ("passed",) else "other"


# ------------------------------------------------------------------ failures


def _failure(number: int, failure: FailureRow, facts: SessionFacts) -> str:
    where = "" if failure.phase == "call" else f" ({escape(failure.phase)})"
    return "\n".join(
        [
            f'<section aria-labelledby="failure-{number}">',
            f'<h2 id="failure-{number}">{escape(failure.nodeid)}{where}</h2>',
            _terminal(failure.text),
            *_code(failure.code, facts.docs_url),
            failure.picture,
            f"<p>To run it again, in {escape(facts.directory)}:</p>",
            f'<pre class="command">{escape(failure.command)}</pre>',
            "</section>",
        ]
    )


def _block(title: str, text: str) -> str:
    return f"<section><h2>{title}</h2>{_terminal(text)}</section>"


def _terminal(text: str) -> str:
    # One that is wider than the window is scrolled with the keys, too.
    shown = terminal_html.html_of(text.strip("\n"))
    return f'<pre tabindex="0" role="region" aria-label="text of the terminal">{shown}</pre>'


def _code(code: str, docs_url: str) -> Iterator[str]:
    """The meaning of a code as HTML, since the page of the documentation may be out of reach."""
    if not code:
        return
    entry = by_code()[code]
    where = escape(explained_at(code, docs_url))
    where = f'<a href="{where}">{where}</a>' if docs_url else f"<code>{where}</code>"
    yield (
        f"<details><summary><strong>{code}</strong>: {_prose(entry.title)}</summary>"
        f"<p>{_prose(entry.meaning)}</p>"
        f"<p>Likely causes:</p>{_list(entry.causes)}<p>What to do:</p>{_list(entry.fixes)}"
        f"<p>{where}</p></details>"
    )


def _list(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_prose(text)}</li>' for text in texts)}</ul>"


def _prose(text: str) -> str:
    """A text of the table of codes, where code is between backticks."""
    parts = escape(text).split("`")
    return "".join(f"<code>{p}</code>" if n % 2 else p for n, p in enumerate(parts))
