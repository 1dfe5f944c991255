"""A rank that fails in whatever way makes the test fail, is named, and harms no other test."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import pytest

from tests.acceptance.ends.deaths import (
    AFTER,
    PRELUDE,
    Death,
    deaths,
    line_of,
    name_of,
    source,
)
from tests.acceptance.suite import Finished, Result, Suite

PLACES = ("body", "setup", "teardown", "collective")
VERDICTS = {
    "body": "failed",
    "setup": "error",
    "teardown": "passed+error",
    "collective": "failed",
}
EXHAUSTIVE = pytest.mark.exhaustive
RANKS = [pytest.param(0, marks=EXHAUSTIVE), 1, pytest.param(2, marks=EXHAUSTIVE)]
"""Rank 1 stands for the others in ``make test``."""
DEATHS = [
    pytest.param(place, death, id=f"{place}-{death.name}")
    for place in PLACES
    for death in deaths(place)
]
AT_THE_DEADLINE = "timed out after 60 s"
"""The words for a failure that nothing but the clock has found."""


def file_of(place: str, rank: int) -> str:
    return f"test_{place}_{rank}.py"


@pytest.fixture(scope="module")
def run_all_deaths(new_suite: Callable[[], Suite]) -> Callable[[str, int], Finished]:
    """Runs every death of a rank in a place, once.

    Not a parametrized fixture: pytest would run that anew for every set of parameters.
    """

    @functools.cache
    def run(place: str, rank: int) -> Finished:
        suite = new_suite()
        suite.write(file_of(place, rank), source(place, rank))
        return suite.run("--ddp-timeout=60", timeout=150)

    return run


@pytest.fixture
def dead(run_all_deaths: Callable[[str, int], Finished], place: str, rank: int) -> Finished:
    """The run with all deaths of the rank, in the place, that the test is parametrized with."""
    return run_all_deaths(place, rank)


def result_of(finished: Finished, place: str, name: str, rank: int) -> Result:
    return finished.results[f"{file_of(place, rank)}::test_{name}"]


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize(("place", "death"), DEATHS)
class TestDeath:
    def test_fails(self, dead: Finished, place: str, death: Death, rank: int) -> None:
        result = result_of(dead, place, name_of(death, rank), rank)
        assert result.verdict == VERDICTS[place], result.text
        assert AT_THE_DEADLINE not in result.text

    def test_is_described(self, dead: Finished, place: str, death: Death, rank: int) -> None:
        result = result_of(dead, place, name_of(death, rank), rank)
        failed = [report for report in result.reports if report.outcome == "failed"]
        assert len(failed) == 1
        assert failed[0].message.startswith(f"rank {rank}"), failed[0].message
        assert f"rank {rank}" in result.text
        assert death.shown.format(answer=40 + rank) in result.text

    def test_is_located(self, dead: Finished, place: str, death: Death, rank: int) -> None:
        result = result_of(dead, place, name_of(death, rank), rank)
        line = line_of(source(place, rank), name_of(death, rank))
        shown = f"{file_of(place, rank)}:{line}" in result.text
        assert shown == death.leaves_line, result.text

    def test_next_test_passes(self, dead: Finished, place: str, death: Death, rank: int) -> None:
        result = result_of(dead, place, f"after_{name_of(death, rank)}", rank)
        assert result.verdict == "passed", result.text


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("place", PLACES)
def test_every_test_is_reported_once(dead: Finished, place: str, rank: int) -> None:
    for result in dead.results.values():
        phases = [report.when for report in result.reports]
        expected = ["setup", "call", "teardown"]
        if result.phase("setup").outcome == "failed":
            expected.remove("call")
        assert phases == expected, result.nodeid
    assert len(dead.results) == 2 * len(deaths(place))
    assert dead.returncode == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("death", deaths("collective"), ids=lambda death: death.name)
@pytest.mark.parametrize("place", ["collective"])
def test_peers_in_a_collective_are_no_cause(
    dead: Finished, place: str, death: Death, rank: int
) -> None:
    """Each peer is named once, in a line, after the root cause."""
    text = result_of(dead, place, name_of(death, rank), rank).text
    lines = text.splitlines()
    seen = [(peer, n) for n, line in enumerate(lines) for peer in ranks_named(line) if peer != rank]
    cause = next(n for n, line in enumerate(lines) if line.startswith(f"rank {rank}"))
    assert sorted(peer for peer, _ in seen) == sorted({0, 1, 2} - {rank}), text
    assert all(found > cause for _, found in seen), text
    assert text.count("most recent call first") <= 1, text


def ranks_named(line: str) -> set[int]:
    """The ranks that a line such as ``ranks 0, 2-3: passed`` speaks of."""
    found = re.match(r"ranks? ([\d, -]+): ", line)
    spans = [span.partition("-") for span in found[1].split(", ")] if found else []
    return {n for first, _, last in spans for n in range(int(first), int(last or first) + 1)}


# ---------------------------------------------------------------- more than one rank

SEVERAL = """

@pytest.mark.ddp(world_size=3)
def test_each_its_own(ddp):
    assert answer(ddp.rank) == 99


@pytest.mark.ddp(world_size=3)
def test_all_alike(ddp):
    assert answer(2) == 99


@pytest.mark.ddp(world_size=3)
def test_all_die(ddp):
    os._exit(ddp.rank)


@pytest.mark.ddp(world_size=3)
def test_all_killed(ddp):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.ddp(world_size=3)
def test_body_and_teardown(ddp, request):
    @request.addfinalizer
    def finalize():
        assert ddp.rank != 2, "in teardown"

    assert ddp.rank != 0, "in body"
"""
SEVERAL_NAMES = (
    "each_its_own",
    "all_alike",
    "all_die",
    "all_killed",
    "body_and_teardown",
)

STRAY = """
import io

START = os.getcwd()


@pytest.mark.ddp(world_size=3)
def test_forks(ddp):
    # The child goes on as if it were the rank, to the end of the test and beyond.
    child = os.fork() if ddp.rank == 1 else 0
    if child:
        os.waitpid(child, 0)


@pytest.mark.ddp(world_size=3)
def test_closes_descriptors(ddp):
    if ddp.rank == 1:
        os.closerange(3, 256)


@pytest.mark.ddp(world_size=3)
def test_closes_every_descriptor(ddp):
    if ddp.rank == 2:
        os.closerange(0, 256)


@pytest.mark.ddp(world_size=3)
def test_replaces_stdout(ddp):
    sys.stdout = io.StringIO()
    sys.stderr = None


@pytest.mark.ddp(world_size=3)
def test_changes_directory(ddp, tmp_path):
    os.chdir(tmp_path)


@pytest.mark.ddp(world_size=3)
def test_clears_environment(ddp):
    os.environ.clear()


@pytest.mark.ddp(world_size=3)
def test_ignores_signals(ddp):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
"""
STRAY_NAMES = (
    "forks",
    "closes_descriptors",
    "closes_every_descriptor",
    "replaces_stdout",
    "changes_directory",
    "clears_environment",
    "ignores_signals",
)
NEXT = """

@pytest.mark.ddp(world_size=3)
def test_next(ddp):
    print("printed", ddp.rank)
    assert os.getcwd() == START
    assert os.environ["PATH"]
    assert os.environ["RANK"] == str(ddp.rank)
    assert sum_of_ones() == 3
"""


def with_next(blocks: str) -> str:
    """The blocks, each test followed by a healthy one of the name ``test_after_...``."""
    first, *tests = blocks.split("\n@pytest.mark.ddp")
    out = first
    for block in tests:
        name = block.split("def test_")[1].split("(")[0]
        follower = NEXT.replace("test_next", f"test_after_{name}") if "START" in first else ""
        out += "\n@pytest.mark.ddp" + block + (follower or AFTER.format(name=name)) + "\n"
    return PRELUDE + out


@pytest.fixture(scope="module")
def odd(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_several.py", with_next(SEVERAL))
    suite.write("test_stray.py", with_next(STRAY))
    return suite.run("--ddp-timeout=60", timeout=120)


@pytest.mark.parametrize("name", SEVERAL_NAMES + STRAY_NAMES)
def test_next_test_passes(odd: Finished, name: str) -> None:
    result = odd[f"test_after_{name}"]
    assert result.verdict == "passed", result.text


@pytest.mark.parametrize("name", SEVERAL_NAMES + STRAY_NAMES)
def test_reported_once(odd: Finished, name: str) -> None:
    phases = [report.when for report in odd[f"test_{name}"].reports]
    assert phases == ["setup", "call", "teardown"]


@pytest.mark.parametrize("rank", range(3))
def test_unlike_failures_are_all_shown(odd: Finished, rank: int) -> None:
    result = odd["test_each_its_own"]
    assert result.verdict == "failed"
    assert f"assert {40 + rank} == 99" in result.text
    assert f"rank {rank}" in result.text


def test_like_failures_are_shown_once(odd: Finished) -> None:
    result = odd["test_all_alike"]
    assert result.verdict == "failed"
    assert "ranks 0-2" in result.text
    assert result.text.count("E       assert 42 == 99") == 1


def test_deaths_of_all_ranks_are_shown(odd: Finished) -> None:
    text = odd["test_all_die"].text
    for rank in range(3):
        assert f"rank {rank} exited with code {rank}" in text or (
            f"rank {rank}: exited with code {rank}" in text
        )
    assert odd["test_all_killed"].phase("call").message.startswith("ranks 0-2 died of SIGKILL")


def test_failures_of_body_and_teardown_are_both_reported(odd: Finished) -> None:
    result = odd["test_body_and_teardown"]
    assert result.verdict == "failed+error"
    assert "in body" in result.phase("call").text
    assert "in teardown" in result.phase("teardown").text


def test_forked_child_is_not_taken_for_the_rank(odd: Finished) -> None:
    """The child must not report; whether its parent's test may pass is not asked here."""
    result = odd["test_forks"]
    assert result.verdict in ("passed", "failed")
    assert AT_THE_DEADLINE not in result.text


@pytest.mark.parametrize(
    ("name", "rank"), [("closes_descriptors", 1), ("closes_every_descriptor", 2)]
)
def test_closed_descriptors_are_a_failure(odd: Finished, name: str, rank: int) -> None:
    result = odd[f"test_{name}"]
    failed = [report for report in result.reports if report.outcome == "failed"]
    assert [report.message.startswith(f"rank {rank}") for report in failed] == [True], result.text
    assert AT_THE_DEADLINE not in result.text


@pytest.mark.parametrize(
    ("name", "words"),
    [("changes_directory", "directory"), ("clears_environment", "environment")],
)
def test_lasting_change_is_a_warning(odd: Finished, name: str, words: str) -> None:
    assert odd[f"test_{name}"].verdict == "passed"
    seen = [text for text in odd.warnings if f"test_{name}" in text]
    assert seen
    assert all(words in text for text in seen)
