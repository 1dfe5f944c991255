"""A session that is interrupted in a ddp test shows where the ranks stood."""

from __future__ import annotations

import re
import signal
import time
import xml.etree.ElementTree as ElementTree

import pytest

from tests.acceptance.suite import UNDER_XDIST, Finished, Running, Suite, flat

pytestmark = pytest.mark.skipif(UNDER_XDIST, reason="xdist's workers are not interrupted")

START_LIMIT = 120.0
END_LIMIT = 60.0
SOURCE = """
    import signal
    import time
    from pathlib import Path

    import pytest
    import torch.distributed as dist

    def begin(ddp):
        Path(f"begun{ddp.rank}").touch()

    @pytest.mark.ddp(world_size=3)
    def test_long(ddp):
        pair = dist.new_group([0, 1])
        if ddp.rank == 2:
            begin(ddp)
            return
        with ddp.phase("training"):
            begin(ddp)
            while ddp.rank == 0:
                time.sleep(0.01)  # here
        dist.barrier(group=pair)
"""
SILENT = """
    import ctypes
    from pathlib import Path

    import pytest

    @pytest.mark.ddp(world_size=1)
    def test_silent(ddp):
        Path("begun0").touch()
        ctypes.PyDLL(None).sleep(600)  # holds the GIL
"""
IN_FIXTURE = """
    import time
    from pathlib import Path

    import pytest

    @pytest.fixture
    def slow(ddp):
        Path(f"begun{ddp.rank}").touch()
        time.sleep(600)

    @pytest.mark.ddp(world_size=1)
    def test_never(ddp, slow):
        pass
"""


def _begun(suite: Suite, ranks: int) -> Running:
    running = suite.start("--junitxml=junit.xml")
    deadline = time.monotonic() + START_LIMIT
    while not all((suite.directory / f"begun{rank}").exists() for rank in range(ranks)):
        assert time.monotonic() < deadline, running.stdout
        assert running.process.poll() is None, running.stdout
        time.sleep(0.05)
    # A rank that has just touched its file is to come to where it stays.
    time.sleep(1)
    return running


def _interrupted(suite: Suite, source: str, ranks: int) -> Finished:
    suite.write("test_it.py", source)
    running = _begun(suite, ranks)
    running.process.send_signal(signal.SIGINT)
    finished = running.finish(END_LIMIT)
    assert finished.returncode == pytest.ExitCode.INTERRUPTED, finished.tail()
    return finished


def _shown(finished: Finished) -> str:
    return finished.output.partition("ddp: interrupted ===")[2]


def test_each_rank_has_its_row(suite: Suite) -> None:
    finished = _interrupted(suite, SOURCE, 3)
    shown = flat(_shown(finished))
    assert "test_it.py::test_long was interrupted after " in shown
    lines = (finished.directory / "test_it.py").read_text().splitlines()
    here = 1 + next(number for number, line in enumerate(lines) if "# here" in line)
    assert re.search(f"rank 0 runs call: training test_it.py:({here - 1}|{here}) in", shown), shown
    assert re.search(f"rank 1 waits call barrier #1 of .* test_it.py:{here + 1}", shown), shown
    assert "rank 2 ended" in shown
    finished.assert_outcomes()


def test_the_file_of_junitxml_has_it(suite: Suite) -> None:
    finished = _interrupted(suite, SOURCE, 3)
    report = ElementTree.parse(finished.directory / "junit.xml")
    (shown,) = [
        one.get("value", "")
        for one in report.iterfind("testsuite/properties/property")
        if one.get("name") == "ddp.interrupted"
    ]
    assert "test_it.py::test_long was interrupted after " in shown


def test_a_rank_that_holds_the_gil_holds_up_no_interrupt(suite: Suite) -> None:
    finished = _interrupted(suite, SILENT, 1)
    assert "rank 0 silent" in flat(_shown(finished)), finished.tail()


def test_a_fixture_is_reported_by_its_name(suite: Suite) -> None:
    finished = _interrupted(suite, IN_FIXTURE, 1)
    assert "rank 0 runs setup: fixture slow test_it.py:10 in slow" in flat(_shown(finished))


def test_two_interrupts_end_it_as_well(suite: Suite) -> None:
    suite.write("test_it.py", SOURCE)
    running = _begun(suite, 3)
    running.process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    running.process.send_signal(signal.SIGINT)
    finished = running.finish(END_LIMIT)
    assert finished.returncode != pytest.ExitCode.OK
    finished.assert_outcomes()


def test_a_session_without_interrupt_shows_none(suite: Suite) -> None:
    suite.write("test_it.py", "import pytest\n\n@pytest.mark.ddp\ndef test_good(ddp): pass\n")
    finished = suite.run("--junitxml=junit.xml")
    assert "interrupted" not in finished.output
    assert "ddp.interrupted" not in (finished.directory / "junit.xml").read_text()
