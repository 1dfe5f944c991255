"""Plugins that are not ours and use our hooks: a conftest file here."""

from __future__ import annotations

import pytest

from tests.acceptance.suite import EXTRA_ARGS, Finished, Suite, flat

CONFTEST = """
    import pytest
    from pytest_ddp.settings.mark import DdpTest, MarkArgument


    def small(value):
        if type(value) is not int or value > 9:
            raise ValueError("it is a number of at most 9")
        return value


    def pytest_ddp_mark_arguments():
        return {"limit": MarkArgument(small, "limit is at most 9")}


    def pytest_ddp_fixture_attributes(ddp):
        return {"twice": 2 * ddp.rank}


    # ---------------------------------------------- of tests that ask for it by their name

    def pytest_ddp_attempt_begins(item):
        return {"mine": {"text": item.name}} if "sends" in item.name else {}


    def pytest_ddp_test_begins(item, sent):
        item.stash[GOT] = sent.get("mine", {}).get("text", "")


    def pytest_ddp_test_ended(item):
        got = item.stash[GOT]
        return {"mine": {"got": got}} if got else {}


    def pytest_ddp_findings(item, sent):
        if "found" in item.name:
            return f"found on ranks {sorted(sent)}: {sent[1]['mine']['got']}"


    def pytest_ddp_test_finished(item, reports):
        said = ", ".join(f"{report.when} {report.outcome}" for report in reports)
        print(f"finished {item.name}: {said}")


    def pytest_ddp_rank_begins(config):
        config.stash[BEGUN] = True


    BEGUN = pytest.StashKey()
    GOT = pytest.StashKey()


    @pytest.fixture
    def has_begun(pytestconfig):
        return BEGUN in pytestconfig.stash


    # ---------------------------------------------- of tests without a mark

    def pytest_ddp_make_test(item):
        if "made" in item.name:
            return DdpTest(getattr(item, "callspec", None) and [2, 3] or 3)


    def pytest_ddp_world_sizes(metafunc):
        if metafunc.function.__name__.endswith("made_twice"):
            return [2, 3]
"""
TESTS = """
    import pytest


    @pytest.mark.ddp(world_size=2, limit=3)
    def test_attribute(ddp):
        assert ddp.gather(ddp.twice) == [0, 2]


    @pytest.mark.ddp(world_size=2)
    def test_of_the_core(ddp):
        assert ddp.gather(ddp.rank) == [0, 1]


    @pytest.mark.ddp(world_size=2)
    def test_sends_and_passes(ddp, has_begun):
        assert has_begun


    @pytest.mark.ddp(world_size=2)
    def test_sends_and_is_found(): pass


    @pytest.mark.ddp(world_size=2)
    def test_sends_is_found_and_fails():
        assert 0, "its own text"


    @pytest.mark.ddp(world_size=2)
    def test_sends_is_found_and_skips():
        pytest.skip("not today")


    # What pytest does with a test of one process that calls pytest.fail.

    @pytest.mark.ddp(world_size=2)
    @pytest.mark.parametrize("strict", [True, False])
    def test_sends_is_found_as_expected(request, strict):
        request.applymarker(pytest.mark.xfail(strict=strict, reason="known"))


    @pytest.mark.xfail(False, raises=ValueError, reason="of another system")
    @pytest.mark.xfail(raises=(ValueError, pytest.fail.Exception), strict=True, reason="known")
    @pytest.mark.ddp(world_size=2)
    def test_sends_is_found_as_expected_with_a_type(): pass


    @pytest.mark.xfail(raises=pytest.RaisesExc(pytest.fail.Exception), reason="known")
    @pytest.mark.ddp(world_size=2)
    def test_sends_is_found_as_expected_with_a_matcher(): pass


    @pytest.mark.ddp(world_size=2)
    @pytest.mark.parametrize("raises", [ValueError, pytest.RaisesExc(ValueError)], ids=repr)
    @pytest.mark.parametrize("strict", [True, False])
    def test_sends_is_found_and_expects_other(request, raises, strict):
        request.applymarker(pytest.mark.xfail(raises=raises, strict=strict, reason="known"))


    @pytest.mark.ddp(world_size=2)
    @pytest.mark.parametrize("strict", [True, False])
    def test_sends_and_passes_unexpectedly(request, strict):
        request.applymarker(pytest.mark.xfail(raises=ValueError, strict=strict, reason="known"))


    def test_made(ddp):
        assert ddp.world_size == 3


    def test_made_twice(ddp, request):
        assert f"ws{ddp.world_size}" in request.node.name


    def test_plain(has_begun):
        assert not has_begun
"""
WRONG = """
    import pytest

    pytestmark = pytest.mark.ddp(limit=8)


    @pytest.mark.ddp(limit=12)
    def test_value(): pass

    @pytest.mark.ddp(limits=1)
    def test_name(): pass
"""


@pytest.fixture(scope="module")
def run(new_suite: type[Suite]) -> Finished:
    suite = new_suite()
    suite.write("conftest.py", CONFTEST)
    suite.write("test_all.py", TESTS)
    return suite.run("-s", *EXTRA_ARGS)


def test_tests_pass(run: Finished) -> None:
    run.assert_outcomes(passed=7, failed=2 + 4 + 1, skipped=1, xfailed=4, xpassed=1)


def test_a_finding_fails_a_test_that_passes(run: Finished) -> None:
    found = run["test_sends_and_is_found"]
    assert found.verdict == "failed"
    assert found.phase("call").message == "found on ranks [0, 1]: test_sends_and_is_found"


def test_a_test_that_fails_keeps_its_text(run: Finished) -> None:
    failed = run["test_sends_is_found_and_fails"]
    assert failed.verdict == "failed"
    assert "its own text" in failed.text
    assert "found on" not in failed.text


def test_a_test_that_skips_stays_skipped(run: Finished) -> None:
    assert "not today" in run["test_sends_is_found_and_skips"].text


def test_a_finding_is_the_failure_that_a_test_expects(run: Finished) -> None:
    expected = [r for nodeid, r in run.results.items() if "found_as_expected" in nodeid]
    assert [result.verdict for result in expected] == ["xfailed"] * 4
    assert all("found on ranks [0, 1]: " in result.text for result in expected)


def test_a_finding_is_no_exception_of_another_type(run: Finished) -> None:
    others = [r for nodeid, r in run.results.items() if "expects_other" in nodeid]
    assert [result.verdict for result in others] == ["failed"] * 4
    assert all(flat(result.text).startswith("found on ranks [0, 1]: ") for result in others)


@pytest.mark.parametrize(("strict", "verdict"), [(True, "failed"), (False, "xpassed")])
def test_without_a_finding_there_is_no_failure(run: Finished, strict: bool, verdict: str) -> None:
    assert run[f"test_sends_and_passes_unexpectedly[{strict}]"].verdict == verdict


def test_plugins_are_shown_the_reports(run: Finished) -> None:
    assert "finished test_made: setup passed, call passed, teardown passed" in run.stdout


def test_wrong_arguments_are_refused(suite: Suite) -> None:
    suite.write("conftest.py", CONFTEST)
    suite.write("test_wrong.py", WRONG)
    out = suite.run().flat
    assert "test_value: @pytest.mark.ddp(limit=12): it is a number of at most 9." in out
    assert "@pytest.mark.ddp(limits=1): no such argument. Did you mean limit?" in out


def test_the_mark_is_listed_with_them(suite: Suite) -> None:
    suite.write("conftest.py", CONFTEST)
    assert "limit is at most 9" in flat(suite.run("--markers").stdout)
