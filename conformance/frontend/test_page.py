"""The report as HTML: a row for each guarantee, in one file that loads nothing."""

from __future__ import annotations

import re

from ddp_conformance.frontend import report
from ddp_conformance.frontend.page import page
from ddp_conformance.frontend.report import Judged, Kill
from ddp_conformance.frontend.table import Word

JUDGED = [
    Judged("mine", "loader", "SMP-01", 2, Word.FAILED, "", ("index <0> twice",), 0.5, "resnet"),
    Judged("mine", "loader", "SMP-02", 2, Word.NOT_BOUND, "SMP-02 does not bind the trait 'x'"),
    Judged("score", "metric", "MET-01", 3, Word.EXPECTED, "issue 12", ("13 for 14",)),
]
KILLS = [
    Kill("everything", "not <split>", "SMP-01", 2, Word.KILLED),
    Kill("everything", "not <split>", "SMP-01", 3, Word.SURVIVED),
    Kill("unsynced", "each rank its own", "MET-02", 2, Word.KILLED),
]


def made() -> str:
    document = report.document(JUDGED, 7, "gloo", KILLS, {"lib.py:3: UserWarning: <old>": 4})
    return page(document, "1 of 3 & so on", {"SMP": "sampling"})


def test_each_guarantee_has_a_row_in_its_group() -> None:
    html = made()
    assert re.findall(r'<tr id="(.*?)">', html) == ["MET-01", "MET-02", "SMP-01", "SMP-02"]
    assert re.findall(r"<h2>(.*?)</h2>", html) == [
        "MET",
        "SMP: sampling",
        "Warnings of other libraries",
    ]
    assert "<h1>1 of 3 &amp; so on</h1>" in html
    for row, cell in (
        ("SMP-01", '<span class="failed">1 failed</span>'),
        ("SMP-01", '<span class="survived">0 of 1</span>'),
        ("SMP-01", "<pre>index &lt;0&gt; twice</pre>"),
        ("SMP-01", "<td>resnet: mine</td><td>2</td>"),
        ("SMP-01", "not &lt;split&gt;"),
        ("SMP-02", '<span class="not-bound">not bound</span>'),
        ("MET-01", "issue 12<pre>13 for 14</pre>"),
        ("MET-02", '<span class="killed">1 of 1</span>'),
    ):
        assert cell in html.partition(f'<tr id="{row}">')[2].partition("<tr id=")[0], cell
    assert "<td>4</td><td><pre>lib.py:3: UserWarning: &lt;old&gt;</pre></td>" in html


def test_what_is_broken_is_open() -> None:
    rows = re.split(r'<tr id="', made())[1:]
    assert {row[:6]: "<details open>" in row for row in rows} == {
        "MET-01": False,
        "MET-02": False,
        "SMP-01": True,
        "SMP-02": False,
    }


def test_the_file_loads_nothing_and_has_light_and_dark() -> None:
    html = made()
    assert not re.search(r"<script|<link|src=|url\(|@import|https?:", html)
    assert "color-scheme: light dark" in html
    assert "prefers-color-scheme: dark" in html
