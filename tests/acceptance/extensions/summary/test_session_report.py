"""``--ddp-report``: one page of a session, whatever became of it."""

from __future__ import annotations

import re
import shlex
import signal
import time
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.acceptance.extensions.summary.suites import OUTSIDE
from tests.acceptance.suite import Finished, Suite

SOURCE = """
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.ddp(world_size=3)
    def test_hangs(ddp):
        print("printed </pre><script>alert(1)</script> \\x1b[32mgreen\\x1b[0m")
        dist.all_reduce(torch.ones(2))
        if ddp.rank == 0:
            dist.barrier()

    @pytest.mark.ddp(world_size=2)
    @pytest.mark.parametrize("x", ["<script>alert(2)</script>", "good"])
    def test_named(ddp, x):
        assert x == "good", "</pre><b>bold</b>"

    @pytest.fixture
    def breaks(ddp):
        yield
        raise OSError("in the teardown")

    @pytest.mark.ddp(world_size=2)
    def test_twice(ddp, breaks):
        assert ddp.rank > 5

    @pytest.mark.ddp(world_size=2, backend="nccl")
    def test_gpus(ddp):
        pass

    @pytest.mark.ddp
    @pytest.mark.xfail(reason="not <yet>")
    def test_later(ddp):
        assert ddp.world_size == 7

    def test_plain():
        print("of the plain test")
        assert 1 == 2

    def test_good_without_ranks():
        pass
"""
ROWS = {
    ("failed", "test_hangs", "3", "gloo"),
    ("failed", "test_named[<script>alert(2)</script>]", "2", "gloo"),
    ("passed", "test_named[good]", "2", "gloo"),
    ("failed + error", "test_twice", "2", "gloo"),
    ("skipped", "test_gpus", "2", "nccl"),
    ("xfailed", "test_later", "2", "gloo"),
    ("failed", "test_plain", "", ""),
}
_VOID = {"meta", "br", "wbr"}
_LOADS = {"script", "link", "img", "iframe", "object", "embed", "source", "base", "form"}


class Page(HTMLParser):
    """A page, as a browser understands it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.texts: dict[str, list[str]] = {}
        """Texts of all elements by tag."""
        self._open: list[tuple[str, list[str]]] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.tags[tag] += 1
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes["href"]] if tag == "a" else []
        if tag not in _VOID:
            self._open.append((tag, []))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1

    def handle_data(self, data: str) -> None:
        for _, text in self._open:
            text.append(data)

    def handle_endtag(self, tag: str) -> None:
        opened, text = self._open.pop()
        assert opened == tag, f"<{opened}> is closed by </{tag}>"
        self.texts.setdefault(tag, []).append("".join(text))

    @property
    def headline(self) -> str:
        return self.texts["h1"][0]

    @property
    def facts(self) -> str:
        return self.texts["p"][0]

    @property
    def rows(self) -> set[tuple[str, ...]]:
        """Verdict, test, ranks and backend of each row."""
        found = re.findall(
            r'<tr><td class="verdict"><span[^>]*>(.*?)</span></td><th scope="row">(.*?)</th>'
            r'<td class="number">(.*?)</td><td>(.*?)</td><td class="number">[\d.]+</td></tr>',
            self.source,
        )
        return {(verdict, _name(cell), ranks, backend) for verdict, cell, ranks, backend in found}

    @property
    def commands(self) -> dict[str, str]:
        """The command of each failure, by the heading above it."""
        commands = [text for text in self.texts["pre"] if re.match(r"(python -m )?pytest ", text)]
        return dict(zip(self.texts["h2"], commands, strict=True))


def _name(cell: str) -> str:
    link = re.sub(r"<p>.*</p>|</?a[^>]*>", "", cell)
    plain = link.replace("&lt;", "<").replace("&gt;", ">")
    return plain.partition("::")[2] or plain


@pytest.fixture(scope="module")
def reported(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_reported.py", SOURCE)
    return suite.run("--ddp-report=made/page.html", "--ddp-trace=traces", "--ddp-timeout=50")


@pytest.fixture(scope="module")
def page(reported: Finished) -> Page:
    return Page(reported.directory / "made" / "page.html")


def test_verdicts_are_those_of_the_terminal(reported: Finished, page: Page) -> None:
    reported.assert_outcomes(passed=2, failed=4, error=1, skipped=1, xfailed=1)
    assert page.rows == ROWS
    expected = "ddp tests: 2 failed, 1 failed + error, 1 passed, 1 skipped, 1 xfailed"
    assert page.headline == f"{expected}; 1 other test failed"
    assert "tests without ranks: 1 failed, 1 passed" in page.facts
    assert "pytest's exit code is 1" in page.facts
    assert "made/page.html" in reported.stdout


def test_the_page_loads_nothing_and_runs_nothing(page: Page) -> None:
    assert not _LOADS & page.tags.keys()
    assert not re.search(r"(?<![\w.])(https?:)?//[a-z]|@import|url\((?!#)", page.source)
    assert not re.search(r"\son\w+=", page.source)
    assert max(Counter(page.ids).values()) == 1


def test_texts_of_tests_are_no_markup(page: Page) -> None:
    texts = page.texts["pre"]
    assert any("printed </pre><script>alert(1)</script> green" in text for text in texts)
    assert any("</pre><b>bold</b>" in text for text in texts)
    assert "test_reported.py::test_named[<script>alert(2)</script>]" in page.texts["h2"]
    assert page.tags["b"] == 0
    assert '<span class="t32">green</span>' in page.source


def test_failures_are_shown_as_on_the_terminal(reported: Finished, page: Page) -> None:
    shown = "\n".join(page.texts["pre"])
    for line in (
        "rank 0  waits  call  barrier #2 of the default group",
        "E       AssertionError: </pre><b>bold</b>",
        "OSError: in the teardown",
        "of the plain test",
    ):
        assert line in shown
        assert line in reported.stdout
    assert '<span class="t1 t31">deadlock: rank 0 waits' in page.source
    assert re.search(r'rank 0  <span class="t1 t33">waits</span>', page.source)


def test_codes_are_explained(page: Page) -> None:
    assert page.texts["summary"] == ["DDP-001: A rank waits for a rank that has ended the test"]
    assert "Ranks have unequal numbers of batches" in page.texts["details"][0]
    assert "python -m pytest_ddp explain DDP-001" in page.texts["details"][0]


def test_pictures_are_on_the_page(page: Page) -> None:
    assert page.tags["svg"] == page.tags["figure"] == 3
    assert any("barrier #2" in text for text in page.texts["svg"])


def test_rows_lead_to_failures(page: Page) -> None:
    assert len(page.links) == 4
    assert {link.removeprefix("#") for link in page.links} <= {*page.ids}


def test_commands_repeat_their_failures(page: Page, suite: Suite) -> None:
    commands = page.commands
    assert len(commands) == 5
    for name in ("test_reported.py::test_hangs", "test_reported.py::test_twice (teardown)"):
        words = shlex.split(commands[name])
        assert "--ddp-timeout=50" in words
        assert not [word for word in words if word.startswith("--ddp-report")]
    suite.write("test_reported.py", SOURCE)
    heading = "test_reported.py::test_named[<script>alert(2)</script>]"
    words = shlex.split(commands[heading])
    finished = suite.run(*words[words.index(heading) :], extra=())
    finished.assert_outcomes(failed=1)
    assert heading in finished.results


def test_under_xdist_the_main_process_writes_it(new_suite: Callable[[], Suite]) -> None:
    suite = new_suite()
    suite.write("test_reported.py", SOURCE)
    options = ("-n2", "--dist=load", "--ddp-report=page.html", "--ddp-trace=traces")
    finished = suite.run(*options, extra=(), timeout=120)
    page = Page(finished.directory / "page.html")
    assert page.rows == ROWS
    assert page.tags["svg"] == 3
    assert finished.stdout.count("report of ddp tests:") == 1
    assert '<span class="t1 t31">deadlock: rank 0 waits' in page.source
    assert page.texts["summary"] == ["DDP-001: A rank waits for a rank that has ended the test"]


def test_a_worker_that_crashes(suite: Suite) -> None:
    suite.write("test_crash.py", "import os\n\ndef test_crash():\n    os._exit(3)\n")
    suite.run("-n1", "--max-worker-restart=0", "--ddp-report=page.html", extra=())
    page = Page(suite.directory / "page.html")
    assert page.headline == "no ddp test ran; 1 other test failed"
    assert page.rows == {("failed", "test_crash", "", "")}
    assert "worker 'gw0' crashed" in page.texts["th"][-1]


GOOD = """
    import pytest

    @pytest.mark.ddp(world_size=1)
    def test_good(ddp):
        pass
"""


def test_a_session_that_stops_early(suite: Suite) -> None:
    source = "\n    def test_bad():\n        assert 0\n"
    suite.write("test_a.py", f"{GOOD}{source}\n    def test_next():\n        pass\n")
    suite.run("-x", "--ddp-report=page.html", extra=())
    page = Page(suite.directory / "page.html")
    assert page.headline == "ddp tests: 1 passed; 1 other test failed"
    assert "tests that did not run: 1 (stopping after 1 failures)" in page.facts


def test_a_session_without_ddp_tests(suite: Suite) -> None:
    suite.write("test_a.py", "def test_a():\n    pass\n")
    suite.write("test_b.py", "import no_such_module\n")
    suite.run("--continue-on-collection-errors", "--ddp-report=page.html")
    page = Page(suite.directory / "page.html")
    assert page.headline == "no ddp test ran; 1 file not collected"
    assert "tests without ranks: 1 passed" in page.facts
    assert "No module named 'no_such_module'" in page.texts["pre"][0]
    assert page.tags["table"] == 0


def test_errors_outside_of_the_tests_are_shown(suite: Suite) -> None:
    suite.write("test_a.py", OUTSIDE)
    finished = suite.run("--ddp-report=page.html", extra=())
    assert finished.returncode == 1
    page = Page(suite.directory / "page.html")
    assert page.headline == "ddp tests: 1 passed; an error outside of the tests"
    assert page.texts["h2"] == ["Error outside of the tests"]
    assert "SIGKILL" in page.texts["pre"][0]
    assert "pytest's exit code is 1" in page.facts


WAITS = """
    import time
    from pathlib import Path

    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_waits(ddp):
        ddp.barrier()
        Path(f"begun-{ddp.rank}").touch()
        time.sleep(600)
"""
START_LIMIT = 120.0
"""Seconds until all ranks of an inner test have begun, on a loaded machine."""


def test_an_interrupted_session(suite: Suite) -> None:
    suite.write("test_waits.py", WAITS)
    suite.write("test_after.py", GOOD)
    running = suite.start("test_waits.py", "test_after.py", "--ddp-report=page.html", extra=())
    deadline = time.monotonic() + START_LIMIT
    while len([*suite.directory.glob("begun-*")]) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    running.process.send_signal(signal.SIGINT)
    finished = running.finish(START_LIMIT)
    assert finished.returncode == pytest.ExitCode.INTERRUPTED
    page = Page(suite.directory / "page.html")
    assert page.headline.startswith("interrupted; ")
    assert "tests that did not run: 2" in page.facts
    assert "test_waits.py::test_waits was interrupted after" in page.texts["pre"][0]
    assert re.search(r"rank 1 +runs", page.texts["pre"][0])


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("pytest.ini/page.html", "no file can be written there: "),
        ("folder", "there is a directory of this name; name a file."),
    ],
)
def test_a_path_that_cannot_be_written(suite: Suite, path: str, said: str) -> None:
    suite.write("test_a.py", GOOD)
    (suite.directory / "folder").mkdir()
    finished = suite.run(f"--ddp-report={path}", extra=())
    assert finished.returncode == pytest.ExitCode.USAGE_ERROR
    assert said in finished.stderr
    assert path in finished.stderr
    assert not finished.results
    assert "Traceback" not in finished.output


def test_it_is_replaced_at_once(suite: Suite) -> None:
    suite.write("test_a.py", GOOD)
    path = suite.directory / "page.html"
    path.write_text("of an earlier session")
    with path.open() as reader:
        suite.run("--ddp-report=page.html")
        assert reader.read() == "of an earlier session"
    assert Page(path).headline == "ddp tests: 1 passed"
    assert [each.name for each in suite.directory.glob("page*")] == ["page.html"]


def test_no_page_is_written_where_no_test_runs(suite: Suite) -> None:
    suite.write("test_a.py", GOOD)
    suite.run("--collect-only", "--ddp-report=page.html")
    assert not (suite.directory / "page.html").exists()
