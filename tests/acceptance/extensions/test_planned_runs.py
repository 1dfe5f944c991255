"""Several runs of one item, as the plans of a conftest file here want them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from tests.acceptance.plugins.test_reruns import CONFTEST as RERUNNER
from tests.acceptance.suite import LOADFILE, UNDER_XDIST, Finished, Suite

PLANS = """
    import os

    import pytest
    from pytest_ddp.session.planned_runs import ItemVerdict, PlannedRun, RunPlan

    SENT = pytest.StashKey()
    ITEMS = {}


    def pytest_ddp_attempt_begins(item):
        return {"mine": {"number": -1}, "other": {"kept": True}}


    def pytest_ddp_test_begins(item, sent):
        item.stash[SENT] = sent


    def pytest_ddp_test_ended(item):
        notes = vars(item.module).pop("NOTES", None)
        return {"mine": {"notes": notes, "pid": os.getpid(), **item.stash[SENT]}}


    @pytest.fixture
    def sent(request):
        return request.node.stash[SENT]


    @pytest.fixture
    def number(sent):
        return sent["mine"]["number"]


    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(items):
        ITEMS.update({item.name: item for item in items})


    def runs(count, **kwargs):
        found = []
        for n in range(count):
            found.append((yield PlannedRun(f"run {n}", sent={"mine": {"number": n}}, **kwargs)))
        return found


    def notes(results):
        return [{rank: sent["mine"]["notes"] for rank, sent in r.sent.items()} for r in results]


    def second_counts(item):
        found = yield from runs(3)
        lines = "fails in the second run; passes otherwise", "Again: pytest -k second"
        return ItemVerdict(found[1], *lines)


    def check(item):
        # Two runs whose results are compared here, in the pytest process.
        found = yield from runs(2)
        return ItemVerdict(found[0], error="" if CHECKS[item.name](found) else repr(found))


    CHECKS = {
        "test_sent": lambda found: notes(found) == [{0: [0, True], 1: [0, True]},
                                                    {0: [1, True], 1: [1, True]}],
        "test_is_as_new": lambda found: notes(found) == [{0: "", 1: ""}] * 2,
        "test_wide_fixture": lambda found: notes(found) == [{0: 1, 1: 1}] * 2,
        "test_dies_once": lambda found: [f.codes for f in found] == [(), ("DDP-020",)]
        and found[1].sent.keys() == {0},
    }


    def of_reference(item):
        reference = ITEMS["test_reference"]
        first = yield PlannedRun("reference", reference, seed_name="both")
        second = yield PlannedRun("own", seed_name="both")
        draws = [{sent["mine"]["notes"] for sent in r.sent.values()} for r in (first, second)]
        names = [{report.nodeid for report in r.reports} for r in (first, second)]
        ok = draws[0] == draws[1] and names == [{reference.nodeid}, {item.nodeid}]
        return ItemVerdict(second, error="" if ok else f"{draws} {names}")


    def on_fresh_ranks(item):
        found = [*(yield from runs(1)), *(yield from runs(1, isolate=True))]
        before, after = ({s["mine"]["pid"] for s in r.sent.values()} for r in found)
        return ItemVerdict(found[1], error=f"{before} {after}" if before & after else "")


    def alters_ranks(item):
        words = ["", "word", "word", "other", ""]
        found = []
        for word in words:
            (result,) = yield from runs(1, alters=word)
            found.append(frozenset(s["mine"]["pid"] for s in result.sent.values()))
        plain, first, second, third, last = found
        is_kept = plain == first == second
        is_new = [not one & other for one, other in ((second, third), (third, last))]
        ok = is_kept and all(is_new)
        return ItemVerdict(result, error="" if ok else str(found))


    def knows_its_launch(item, launch):
        result = yield PlannedRun("only")
        ok = (launch.world_size, launch.timeout, launch.devices) == (2, 77, None)
        return ItemVerdict(result, error="" if ok else str(launch))


    def skips(item):
        yield PlannedRun("only")
        return ItemVerdict(skip="the reference was skipped")


    def errs(item):
        yield PlannedRun("only")
        return ItemVerdict(error="the reference test_reference failed")


    def raises(item):
        yield PlannedRun("only")
        raise LookupError("no such world")


    def yields_a_name(item):
        yield "reference"


    def returns_nothing(item):
        yield PlannedRun("only")


    def returns_another(item):
        result = yield PlannedRun("only")
        return ItemVerdict(type(result)(result.run, (), {}, ()))


    def of_ordinary(item):
        return ItemVerdict((yield PlannedRun("ordinary", ITEMS["test_ordinary"])))


    def until_closed(item):
        try:
            while True:
                result = yield PlannedRun("again")
        finally:
            (item.config.rootpath / "closed.txt").write_text(item.name)


    def pytest_ddp_plan_runs(item, launch):
        plan = getattr(item.function, "plan", None)
        if plan == "knows_its_launch":
            return RunPlan(knows_its_launch(item, launch))
        if plan is not None:
            return RunPlan(globals()[plan](item), reruns="driven" not in plan)
"""

TESTS = """
    import os
    import signal

    import pytest
    import torch

    pytestmark = pytest.mark.ddp(world_size=2)
    SET_UP = 0

    def planned(plan):
        return lambda test: vars(test).update(plan=plan) or test

    @planned("second_counts")
    def test_second_fails(number, record_property):
        print(f"output {number}")
        record_property("number", number)
        import warnings
        warnings.warn(f"warning {number}")
        assert number != 1, f"no. {number}"

    @planned("second_counts")
    def test_others_fail(number):
        assert number == 1

    @planned("check")
    def test_sent(sent):
        global NOTES
        NOTES = [sent["mine"]["number"], sent["other"]["kept"]]

    @planned("check")
    def test_is_as_new(tmp_path, ddp):
        global NOTES
        ddp.barrier()
        NOTES = ", ".join(path.name for path in tmp_path.iterdir())
        ddp.barrier()
        (tmp_path / str(ddp.rank)).touch()

    @pytest.fixture(scope="module")
    def wide():
        global SET_UP
        SET_UP += 1
        return SET_UP

    @planned("check")
    def test_wide_fixture(wide):
        global NOTES
        NOTES = wide

    @planned("check")
    def test_dies_once(number, ddp):
        if number and ddp.rank:
            os.kill(os.getpid(), signal.SIGTERM)

    @pytest.mark.ddp(world_size=1)
    def test_reference():
        global NOTES
        NOTES = torch.rand(1).item()

    @planned("of_reference")
    @pytest.mark.ddp(seed="same")
    def test_own():
        global NOTES
        NOTES = torch.rand(1).item()

    @planned("on_fresh_ranks")
    def test_on_fresh_ranks():
        pass

    @planned("alters_ranks")
    def test_alters_ranks():
        pass

    @planned("knows_its_launch")
    @pytest.mark.ddp(timeout=77)
    def test_knows_its_launch():
        pass

    @planned("skips")
    def test_skipped():
        pass

    @planned("errs")
    def test_erroneous():
        pass

    @planned("raises")
    def test_plan_raises():
        pass

    @planned("yields_a_name")
    def test_plan_yields_a_name():
        pass

    @planned("returns_nothing")
    def test_plan_returns_nothing():
        pass

    @planned("returns_another")
    def test_plan_returns_another():
        pass

    @planned("of_ordinary")
    def test_plan_of_ordinary():
        pass

    def test_once(number):
        assert number == -1
"""
ORDINARY = """
    def test_ordinary():
        pass
"""


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("conftest.py", PLANS)
    suite.write("test_suite.py", TESTS)
    suite.write("test_plain.py", ORDINARY)
    deselected = "--deselect=test_suite.py::test_reference"
    return suite.run(*LOADFILE, deselected, "--junitxml=junit.xml", timeout=120)


def test_the_run_that_counts_is_the_verdict(run: Finished) -> None:
    assert run["test_second_fails"].verdict == "failed"
    assert run["test_others_fail"].verdict == "passed"


def test_nothing_of_other_runs_is_shown(run: Finished) -> None:
    assert run["test_second_fails"].sections == {"Captured stdout call [ranks 0-1]": "output 1\n"}
    xml = (run.directory / "junit.xml").read_text()
    assert [f'name="number" value="{n}"' in xml for n in range(3)] == [False, True, False]
    assert [text for text in run.warnings if text.startswith("warning")] == ["warning 1"]


def test_a_heading_is_above_the_text_and_in_the_summary(run: Finished) -> None:
    failed = run["test_second_fails"]
    heading = "fails in the second run; passes otherwise"
    assert failed.phase("call").message == heading
    assert failed.text.startswith(heading)
    assert "no. 1" in failed.text
    assert failed.text.rstrip().endswith("\nAgain: pytest -k second")


@pytest.mark.parametrize(
    "name",
    [
        *("test_sent", "test_is_as_new", "test_wide_fixture", "test_own", "test_on_fresh_ranks"),
        *("test_alters_ranks", "test_knows_its_launch"),
    ],
)
def test_a_run_is_an_attempt(run: Finished, name: str) -> None:
    assert run[name].verdict == "passed", run[name].text


def test_the_next_run_follows_a_death(run: Finished) -> None:
    assert run["test_dies_once"].verdict == "passed", run["test_dies_once"].text


def test_a_plan_may_skip_or_end_in_an_error(run: Finished) -> None:
    assert run["test_skipped"].verdict == "skipped"
    assert "the reference was skipped" in run["test_skipped"].text
    assert run["test_erroneous"].verdict == "error"
    assert run["test_erroneous"].text.strip() == "the reference test_reference failed"


MISTAKES = [
    ("raises", "raised LookupError: no such world"),
    ("yields_a_name", "yielded 'reference'"),
    ("returns_nothing", "returned None"),
    ("returns_another", "returned a verdict without a result of its own runs"),
    ("of_ordinary", "test_plain.py::test_ordinary cannot run on ranks: it is no ddp test"),
]


@pytest.mark.parametrize(("plan", "words"), MISTAKES)
def test_a_mistake_of_a_plan_is_an_error_of_its_item(run: Finished, plan: str, words: str) -> None:
    result = run[f"test_plan_{plan}"]
    assert result.verdict == "error"
    assert words in result.phase("setup").message


def test_other_tests_run_once(run: Finished) -> None:
    assert run["test_once"].verdict == "passed"
    assert "test_reference" not in run


# ------------------------------------------------------------------ beside others that run tests

DRIVEN = """
    import pytest
    from pathlib import Path

    pytestmark = [pytest.mark.ddp(world_size=2), pytest.mark.again]

    def planned(plan):
        return lambda test: vars(test).update(plan=plan) or test

    def note(name, ddp, number):
        if ddp.rank == 0:
            with open(Path(__file__).with_name(name), "a") as file:
                file.write(str(number))

    @planned("second_counts")
    def test_again(ddp, number):
        note("again.txt", ddp, number)
        assert number != 1

    @planned("not_driven")
    def test_alone(ddp, number):
        note("alone.txt", ddp, number)
        assert number != 1
"""


def test_a_plugin_reruns_the_whole_plan_or_leaves_it_alone(suite: Suite) -> None:
    suite.write("conftest.py", f"{PLANS}\n    not_driven = second_counts\n{RERUNNER}")
    suite.write("test_suite.py", DRIVEN)
    run = suite.run(*LOADFILE)
    assert run["test_again"].verdict == "rerun+rerun+failed"
    assert (run.directory / "again.txt").read_text() == "012" * 3
    assert run["test_alone"].verdict == "failed"
    assert (run.directory / "alone.txt").read_text() == "012"


UNTIL_CLOSED = """
    import pytest
    from pathlib import Path

    def planned(plan):
        return lambda test: vars(test).update(plan=plan) or test

    @pytest.mark.ddp(world_size=2)
    @planned("until_closed")
    def test_exits(ddp, request):
        seen = Path(__file__).with_name("seen.txt")
        if ddp.gather(seen.exists())[0]:
            pytest.exit("enough")
        ddp.barrier()
        seen.touch()

    @pytest.mark.ddp(world_size=2)
    @planned("until_closed")
    def test_endless(ddp):
        Path(__file__).with_name("running.txt").touch()
"""


def test_the_plan_is_closed_at_the_end_of_the_session(suite: Suite) -> None:
    suite.write("conftest.py", PLANS)
    suite.write("test_suite.py", UNTIL_CLOSED)
    run = suite.run("-k", "exits")
    assert "enough" in run.output
    assert (run.directory / "closed.txt").read_text() == "test_exits"


@pytest.mark.skipif(UNDER_XDIST, reason="an xdist worker ignores Ctrl-C")
def test_the_plan_is_closed_after_ctrl_c(suite: Suite) -> None:
    suite.write("conftest.py", PLANS)
    suite.write("test_suite.py", UNTIL_CLOSED)
    running = suite.start("-k", "endless")
    while not (suite.directory / "running.txt").exists():
        assert running.process.poll() is None, running.stdout
        time.sleep(0.01)
    running.process.send_signal(signal.SIGINT)
    assert running.finish(60).returncode == pytest.ExitCode.INTERRUPTED
    assert (suite.directory / "closed.txt").read_text() == "test_endless"
