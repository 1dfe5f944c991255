"""Sequences of a terminal as HTML."""

from __future__ import annotations

import pytest

from pytest_ddp.extensions.summary.terminal_html import html_of


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain <b> & \"'", "plain &lt;b&gt; &amp; &quot;&#x27;"),
        ("\x1b[31mred\x1b[0m no", '<span class="t31">red</span> no'),
        ("\x1b[1m\x1b[31mboth\x1b[m no", '<span class="t1 t31">both</span> no'),
        ("\x1b[94mdef\x1b[39;49;00m x", '<span class="t94">def</span> x'),
        ("\x1b[1;31ma\x1b[22mb", '<span class="t1 t31">a</span><span class="t31">b</span>'),
        ("\x1b[31ma\x1b[32mb", '<span class="t31">a</span><span class="t32">b</span>'),
        ("\x1b[38;5;31mx\x1b[48;2;1;31;31my\x1b[4;7;41mz", "xyz"),
        ("\x1b[2K\x1b[1A\x1b]0;title\x07\x1b]8;;http://a\x1b\\x", "x"),
        ("50 %\r100 %\r\nend", "50 %\n100 %\nend"),
        (
            "a\x00b\x08c\x1b",
            "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c\N{REPLACEMENT CHARACTER}",
        ),
        ("\x1b[31m<script>\x1b[0m", '<span class="t31">&lt;script&gt;</span>'),
        ("\x1b[31", "\N{REPLACEMENT CHARACTER}[31"),
        ("\x1b[38m\x1b[38;5mx", "x"),
    ],
)
def test_html(text: str, html: str) -> None:
    assert html_of(text) == html
