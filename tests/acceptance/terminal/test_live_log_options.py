"""Ways to ask pytest for live logs and log files of ddp tests, beside the usual one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.acceptance.suite import UNDER_XDIST, Running, Suite

pytestmark = pytest.mark.skipif(UNDER_XDIST, reason="its workers show no live logs, of no test")

PLAIN = """
    import logging
    import pytest

    log = logging.getLogger("mine")
    pytestmark = MARKS

    def test_says():
        log.info("first", extra={"trial": 7})
        log.debug("second", extra={"trial": 8})
        log.error("two\\nlines", extra={"trial": 9})
"""
FORMAT = "%(levelname)-8s|%(name)s|%(lineno)d|%(funcName)s|%(trial)03d|%(message)s"


def test_records_of_the_only_rank_are_those_of_a_plain_test(suite: Suite) -> None:
    for name, marks in (("plain", "[]"), ("single", "pytest.mark.ddp(world_size=1)")):
        suite.write(f"test_{name}.py", PLAIN.replace("MARKS", marks))
    finished = suite.run("--log-file=it.log", "--log-level=DEBUG", f"--log-format={FORMAT}")
    finished.assert_outcomes(passed=2)
    lines = (suite.directory / "it.log").read_text().splitlines()
    assert len(lines) == 8
    assert lines[:4] == lines[4:]


FILE_FOR_EACH = """
    import pytest

    @pytest.hookimpl(tryfirst=True)
    def HOOK:
        name = nodeid.rpartition("::")[2]
        CONFIG.pluginmanager.get_plugin("logging-plugin").set_log_path(f"logs/{name}.log")

    def pytest_configure(config):
        global CONFIG
        CONFIG = config
"""
THREE = """
    import logging
    import pytest

    def test_one(ddp):
        logging.warning("of one")

    def test_plain():
        logging.warning("of plain")

    def test_two(ddp):
        logging.warning("of two")

    test_one.pytestmark = test_two.pytestmark = [pytest.mark.ddp(world_size=2).mark]
"""


@pytest.mark.parametrize("hook", ["logstart(nodeid)", "setup(item)"])
def test_a_conftest_may_choose_a_file_for_each_test(suite: Suite, hook: str) -> None:
    """A hook sets the file in the pytest process and the ranks, or in the processes that set tests
    up."""
    source = FILE_FOR_EACH.replace("HOOK", f"pytest_runtest_{hook}")
    if "setup" in hook:
        source = source.replace("name = nodeid", "name = item.nodeid")
    suite.write("conftest.py", source)
    suite.write("test_three.py", THREE)
    suite.run("-o", "log_file_format=%(message)s").assert_outcomes(passed=3)
    for name, begins in (
        ("one", "[rank 0] ,[rank 1] "),
        ("plain", ""),
        ("two", "[rank 0] ,[rank 1] "),
    ):
        lines = (suite.directory / "logs" / f"test_{name}.log").read_text().splitlines()
        assert sorted(lines) == [f"{begin}of {name}" for begin in begins.split(",")]


UNLIKE_FILES = """
    import logging
    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_unlike(ddp, pytestconfig):
        if ddp.rank == 1:
            ddp.barrier()
        plugin = pytestconfig.pluginmanager.get_plugin("logging-plugin")
        plugin.set_log_path(f"of_{ddp.rank}.log")
        logging.warning("of %d", ddp.rank)
        if ddp.rank == 0:
            ddp.barrier()
"""


def test_ranks_cannot_have_a_file_each(suite: Suite) -> None:
    suite.write("test_unlike.py", UNLIKE_FILES)
    finished = suite.run("-o", "log_file_format=%(message)s")
    finished.assert_outcomes(passed=1)
    assert "rank 0 sets the log file to" in " ".join(finished.warnings)
    text = (suite.directory / "of_0.log").read_text()
    assert text == "[rank 0] of 0\n[rank 1] of 1\n"


QUIET = """
    import logging
    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_quiet(ddp):
        logging.getLogger().setLevel(logging.DEBUG)
        logging.getLogger("mine").debug("words")
        names = [type(handler).__name__ for handler in logging.getLogger().handlers]
        assert "LiveLogs" not in names, names
"""


@pytest.mark.parametrize("args", [("-p", "no:logging"), ("--log-file-level=DEBUG",)], ids=str)
def test_nobody_listens_unasked(suite: Suite, args: tuple[str, ...]) -> None:
    suite.write("test_quiet.py", QUIET)
    finished = suite.run(*args)
    finished.assert_outcomes(passed=1)
    assert "words" not in finished.output


WAITS = """
    import logging
    import os
    import time
    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_waits(ddp, capsys):
        logging.getLogger("mine").warning("logged and waiting")
        with capsys.disabled():
            print("printed and waiting")
        if ddp.rank == 0:
            while not os.path.exists("go on"):
                time.sleep(0.01)
        ddp.barrier()
"""


def wait_for(running: Running, text: str, times: int) -> None:
    end = time.monotonic() + 180
    while running.stdout.count(text) < times:
        assert time.monotonic() < end, running.stdout
        time.sleep(0.02)


def test_it_is_shown_while_the_test_runs(suite: Suite) -> None:
    suite.write("test_waits.py", WAITS)
    running = suite.start("-o", "log_cli=true")
    try:
        wait_for(running, "] logged and waiting\n", 2)
        wait_for(running, "] printed and waiting\n", 2)
        assert "PASSED" not in running.stdout
    finally:
        Path(suite.directory, "go on").touch()
    running.finish(180).assert_outcomes(passed=1)
