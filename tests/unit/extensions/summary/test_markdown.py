"""The summary as a page shows it, by a parser of Markdown and one of HTML."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pytest_ddp.extensions.summary.markdown import LIMIT, render
from pytest_ddp.extensions.summary.results import Failed, Results

OURS = {
    *("h3", "p", "table", "thead", "tbody", "tr", "th", "td"),
    "details",
    "summary",
    "pre",
    "code",
}
HOSTILE = [
    "a | b",
    "</code></pre></details><script>alert(1)</script>",
    "<!-- <![CDATA[ <?x",
    "```\n~~~",
    "**bold** _dim_ `tick` ~~gone~~ [link](https://example.org) ![image](x.png)",
    "https://example.org www.example.org @somebody #1",
    "&amp; &#124; \\| \\",
    "::error file=a.py::no",
    "\n\n# heading\n\n- list\n\n</pre>\n\n| a |\n|---|",
    "tab\tand #x1B[31mred ünïcode \U0001f600",
]


class _Page(HTMLParser):
    """Tags, and the texts in code and in preformatted blocks."""

    def __init__(self, markdown: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: list[object] = []
        self.texts: dict[str, list[str]] = {"code": [], "pre": []}
        self._inside: str | None = None
        self.feed(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag in self.texts:
            self._inside = tag
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = None

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_data(self, data: str) -> None:
        if self._inside is not None:
            self.texts[self._inside][-1] += data


def _page(name: str, verdict: str, text: str) -> _Page:
    results = Results(Counter(failed=1), [Failed(name, verdict, text)], reports=1)
    return _Page(render(results, name))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_shown_as_they_are(text: str) -> None:
    page = _page(text, text, text)
    assert page.tags <= OURS
    assert not page.attributes
    line = " ".join(text.split())
    assert page.texts["code"] == [line, line, line]
    assert page.texts["pre"] == ["\n" + text.strip("\n") + "\n"]


@given(
    text=st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("\n`|<>&*_[]:#")),
)
def test_no_text_is_markup(text: str) -> None:
    page = _page(text, text, text)
    assert page.tags <= OURS
    assert not page.attributes


def test_no_line_is_an_order_to_the_runner() -> None:
    results = Results(Counter(failed=1), [Failed("::a", "::b", "::error::c")], reports=1)
    assert "::" not in render(results, "::d")


def test_a_summary_has_room_on_a_page() -> None:
    failed = [Failed(f"test_{i}", "ü" * 1000, "ü" * 30_000) for i in range(5000)]
    shown = render(Results(Counter(failed=5000), failed, reports=1), "Tests")
    assert len(shown.encode()) < LIMIT + 1000
    assert "more failures, and " in shown
    assert shown.count("<details>") == shown.count("</details>") > 1


def test_the_heading_counts() -> None:
    counts = Counter(passed=3, failed=1, xfailed=2, skipped=4)
    results = Results(counts, skipped=Counter({"no GPU": 4}), reports=1)
    shown = render(results, "CPU")
    assert shown.startswith("### CPU: 1 failed, 3 passed, 4 skipped, 2 xfailed\n")
    assert "4 skipped: <code>no GPU</code>" in shown


def test_an_error_outside_of_tests_is_in_the_heading() -> None:
    results = Results(Counter(passed=3), outside=["rank 1\n\nTraceback"], reports=1)
    shown = render(results, "CPU")
    assert shown.startswith("### CPU: 3 passed, an error outside of the tests\n")
    assert "<pre>\nrank 1\n\nTraceback\n</pre>" in shown


def test_an_interrupt_is_in_the_heading() -> None:
    results = Results(Counter(passed=3), interrupted=["test_x was interrupted"], reports=1)
    shown = render(results, "CPU")
    assert shown.startswith("### CPU: 3 passed, interrupted\n")
    assert "<pre>\ntest_x was interrupted\n</pre>" in shown


def test_a_session_that_did_not_end_is_named_as_such() -> None:
    results = Results(failed=[Failed("a::b", "rank 0 died", "")], unread=["r: there is no file"])
    shown = render(results, "CPU")
    assert shown.startswith("### CPU: 1 failure reported before pytest was ended\n")
    assert "**Not read:** <code>r&#58; there is no file</code>" in shown


def test_a_session_without_a_test_is_named_as_such() -> None:
    assert render(Results(reports=1), "CPU") == "### CPU: no test ran\n"
