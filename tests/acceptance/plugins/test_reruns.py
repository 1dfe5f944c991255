"""Plugins that run a test again: the whole ddp test, decided in the pytest process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import LOADFILE, Finished, Suite

# As pytest-rerunfailures does it, and many a conftest.
CONFTEST = """
    import pytest
    from _pytest.runner import runtestprotocol

    def pytest_runtest_protocol(item, nextitem):
        if item.get_closest_marker("again") is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for left in (2, 1, 0):
            item.raised = []
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            again = left and any(report.failed for report in reports)
            for report in reports:
                report.outcome = "rerun" if again and report.failed else report.outcome
                item.ihook.pytest_runtest_logreport(report=report)
            if not again:
                break
            with (item.config.rootpath / "raised.txt").open("a") as file:
                print(item.name, *item.raised, file=file)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        if call.excinfo is not None and hasattr(item, "raised"):
            item.raised.append(call.excinfo.typename)
        return report

    def pytest_report_teststatus(report):
        if report.outcome == "rerun":
            return "rerun", "R", "RERUN"

    def pytest_configure(config):
        config.addinivalue_line("markers", "again: up to three times")
"""

SOURCE = """
    import os
    import signal
    from pathlib import Path

    import pytest
    import torch.distributed as dist

    pytestmark = [pytest.mark.ddp(world_size=2), pytest.mark.again]
    HERE = Path(__file__).parent

    @pytest.fixture
    def first(ddp, request):
        file = HERE / f"{request.node.name}.seen"
        seen = ddp.gather(file.exists())
        file.touch()
        with open(HERE / f"{request.node.name}.pids", "a") as pids:
            pids.write(f"{os.getpid()}\\n")
        return not any(seen)

    def test_fails_on_one(ddp, first):
        assert not (first and ddp.rank), "once"

    def test_fails_before_a_collective(ddp, first):
        if first and ddp.rank:
            raise OSError("once")
        dist.barrier()

    def test_crashes(ddp, first):
        if first and ddp.rank:
            os.kill(os.getpid(), signal.SIGSEGV)

    def test_hangs(ddp, first):
        if first and ddp.rank:
            dist.barrier()

    def test_disagrees(ddp, first):
        if first and ddp.rank:
            pytest.skip("alone")

    def test_never_passes(first):
        raise ValueError("never")

    class TestClass:
        def test_has_a_new_self(self, first):
            assert not hasattr(self, "left")
            self.left = True
            assert not first

    @pytest.fixture(scope="module")
    def broken_once():
        file = HERE / f"broken.{os.environ['RANK']}"
        if not file.exists():
            file.touch()
            raise OSError("no fixture")

    def test_has_a_fixture_that_fails_once(broken_once):
        pass

    def test_passes(ddp, tmp_path):
        (tmp_path / str(ddp.rank)).touch()
"""


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("conftest.py", CONFTEST)
    suite.write("test_suite.py", SOURCE)
    return suite.run(*LOADFILE, timeout=120)


ONCE = [
    ("test_fails_on_one", "AssertionError"),
    ("test_fails_before_a_collective", "OSError"),
    ("test_crashes", "Crash"),
    ("test_hangs", "Deadlock"),
    ("test_disagrees", "Disagreement"),
    ("TestClass::test_has_a_new_self", "AssertionError"),
    ("test_has_a_fixture_that_fails_once", "OSError"),
]


@pytest.mark.parametrize(("name", "raised"), ONCE)
def test_a_failure_is_seen_and_the_next_attempt_counts(
    run: Finished, name: str, raised: str
) -> None:
    categories = [report.category for report in run[name].reports if report.category]
    assert categories == ["rerun", "passed"]
    shown = (run.directory / "raised.txt").read_text().splitlines()
    assert f"{name.rpartition(':')[2]} {raised}" in shown


def test_what_never_passes_fails(run: Finished) -> None:
    categories = [report.category for report in run["test_never_passes"].reports]
    assert [category for category in categories if category] == ["rerun", "rerun", "failed"]
    assert "never" in run["test_never_passes"].text


def test_all_ranks_take_part_in_each_attempt(run: Finished) -> None:
    assert len(_pids(run, "test_never_passes")) == 6


@pytest.mark.parametrize("name", ["test_crashes", "test_hangs", "test_disagrees"])
def test_ranks_are_new_after_more_than_an_exception(run: Finished, name: str) -> None:
    assert len(set(_pids(run, name))) == 4


def test_ranks_are_kept_after_an_exception(run: Finished) -> None:
    assert len(set(_pids(run, "test_fails_on_one"))) == 2


def test_counts(run: Finished) -> None:
    run.assert_outcomes(passed=8, failed=1, rerun=9)


def _pids(run: Finished, name: str) -> list[str]:
    return (run.directory / f"{name}.pids").read_text().split()


# ---------------------------------------------------------------- plugins that do it otherwise

PHASES = """
    import pytest
    from _pytest.runner import CallInfo

    def pytest_runtest_protocol(item, nextitem):
        for when in ("setup", "call", "teardown"):
            hook = getattr(item.ihook, f"pytest_runtest_{when}")
            more = {"nextitem": nextitem} if when == "teardown" else {}
            call = CallInfo.from_call(
                lambda: hook(item=item, **more), when=when, reraise=(pytest.exit.Exception,)
            )
            report = item.ihook.pytest_runtest_makereport(item=item, call=call)
            item.ihook.pytest_runtest_logreport(report=report)
        return True
"""

ALONE = """
    import pytest
    from _pytest.runner import CallInfo

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        if call.when != "call" or not report.failed:
            return report
        again = CallInfo.from_call(lambda: item.ihook.pytest_runtest_call(item=item), when="call")
        return pytest.TestReport.from_item_and_call(item, again)
"""

PLAIN = """
    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_passes(ddp):
        pass

    @pytest.mark.ddp(world_size=2)
    def test_fails_on_one(ddp, pytestconfig):
        pytestconfig.runs = getattr(pytestconfig, "runs", 0) + 1
        assert ddp.rank == 0 or pytestconfig.runs > 1, "once"

    def test_ordinary():
        pass
"""


def test_a_plugin_that_runs_phases_is_asked_to_leave_ddp_tests(suite: Suite) -> None:
    suite.write("conftest.py", PHASES)
    suite.write("test_suite.py", PLAIN)
    finished = suite.run(*LOADFILE)
    finished.assert_outcomes(passed=2, failed=1)
    shown = [text for text in finished.warnings if "the phases of a test without pytest" in text]
    assert len(shown) == 1
    assert "conftest.py" in shown[0]


def test_a_plugin_that_repeats_a_phase_in_one_rank_makes_no_pass(suite: Suite) -> None:
    suite.write("conftest.py", ALONE)
    suite.write("test_suite.py", PLAIN)
    finished = suite.run(*LOADFILE)
    finished.assert_outcomes(passed=2, failed=1)
    assert "a second time, in this rank alone" in finished["test_fails_on_one"].text
