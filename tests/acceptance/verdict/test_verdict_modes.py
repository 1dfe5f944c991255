"""The same tests give the same verdicts and messages, however they are run."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from tests.acceptance.ends.deaths import source
from tests.acceptance.suite import EXTRA_ARGS, Finished, Suite
from tests.acceptance.verdict import test_verdict_skip as skips
from tests.acceptance.verdict.collective_examples import UNEQUAL, with_next

pytestmark = pytest.mark.skipif(
    bool(EXTRA_ARGS), reason="compares modes, of which DDP_ACCEPTANCE_ARGS has chosen one"
)

ONE_OF_EACH_END = (
    "raises or sigkill or exit0 or keyboard or skip_one or skip_mark or xfail_strict or xfail_crash"
    " or in_setup or one_less or in_teardown"
)
"""Cases for modes that start ranks for each test: 0.3 s of CPU, and 3 s where each rank imports
torch."""
MODES = {
    "spawn": ("--ddp-start-method=spawn", "-k", ONE_OF_EACH_END),
    "xdist": ("-n", "2"),
    "isolated": ("--ddp-isolate", "-k", ONE_OF_EACH_END),
    "isolated-all": ("--ddp-isolate",),
    "quiet": ("-qq", "-s"),
}


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Callable[..., Finished]:
    """Runs the examples once with the given arguments."""
    suite = new_suite()
    suite.write("test_deaths.py", source("body", 1))
    # That each rank may be the one is shown elsewhere.
    suite.write("test_skips.py", skips.SOURCE.replace("range(3)", "[1]"))
    suite.write("test_unequal.py", with_next(UNEQUAL.replace("range(3)", "[1]")))

    @functools.cache
    def run_once(*args: str) -> Finished:
        return suite.run("--ddp-timeout=60", *args, timeout=150)

    return run_once


def seen(finished: Finished) -> dict[str, list[tuple[str, str, str]]]:
    """The phase, category and message of each report, by test."""
    return {
        nodeid: [(report.when, report.category, report.message) for report in result.reports]
        for nodeid, result in finished.results.items()
    }


@pytest.mark.parametrize("mode", MODES)
def test_same_verdicts(run: Callable[..., Finished], mode: str) -> None:
    plain, other = seen(run()), seen(run(*MODES[mode]))
    assert len(plain) > 75
    assert (len(other) > 25) if "-k" in MODES[mode] else (other.keys() == plain.keys())
    assert {name: other[name] for name in other if other[name] != plain.get(name)} == {}
    assert run(*MODES[mode]).returncode == run().returncode == pytest.ExitCode.TESTS_FAILED
