"""Wrong marks, options and suites: reported clearly, with pytest's own exit codes."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.acceptance.suite import UNDER_XDIST, Finished, Suite

# ---------------------------------------------------------------- marks

MARKS = {
    "world_size=0": ["world_size=0", "at least 1 rank", "Write one, such as 4"],
    "2": ["arguments go by name", "world_size=2"],
    "world_sizes=2": ["world_sizes=2", "Did you mean world_size?"],
}
"""Wrong arguments of the mark, and the words that the error must have."""

PLACES = {
    "async generator": (
        "@pytest.mark.ddp(world_size=2)\nasync def test_marked(ddp):\n    yield\n",
        ["::test_marked", "has a yield", "fixture"],
    ),
    "module": (
        "pytestmark = pytest.mark.ddp(world_size=0)\n",
        ["::test_plain", "world_size=0", "mark is on"],
    ),
}
"""Code with the mark where it cannot be, and the words that the error must have."""

PLAIN = "import pytest\n\n\ndef test_plain():\n    print('ran all the same')\n"


@pytest.fixture(scope="module")
def marks(new_suite: Callable[[], Suite]) -> Finished:
    """One file for each wrong mark: all of them are reported in one run."""
    suite = new_suite()
    for number, arguments in enumerate(MARKS):
        code = f"\n\n@pytest.mark.ddp({arguments})\ndef test_marked(ddp):\n    pass\n"
        suite.write(f"test_mark{number}.py", PLAIN + code)
    for number, (code, _) in enumerate(PLACES.values()):
        suite.write(f"test_place{number}.py", f"{PLAIN}\n\n{code}")
    return suite.run()


@pytest.mark.parametrize("arguments", MARKS)
def test_wrong_mark(marks: Finished, arguments: str) -> None:
    file = f"test_mark{list(MARKS).index(arguments)}.py"
    assert_shown(marks, file, f"{file}::test_marked", "@pytest.mark.ddp(", *MARKS[arguments])


@pytest.mark.parametrize("place", PLACES)
def test_mark_in_a_wrong_place(marks: Finished, place: str) -> None:
    assert_shown(marks, f"test_place{list(PLACES).index(place)}.py", *PLACES[place][1])


def assert_shown(finished: Finished, file: str, *words: str) -> None:
    shown = [text for nodeid, text in finished.collect_errors.items() if nodeid.startswith(file)]
    assert len(shown) == 1, finished.tail()
    text = " ".join(shown[0].split())
    for word in words:
        assert word in text
        assert word in finished.flat
    assert "Traceback" not in text


@pytest.mark.skipif(UNDER_XDIST, reason="pytest-xdist goes on with what its workers collected")
def test_wrong_marks_are_collection_errors(marks: Finished) -> None:
    """pytest runs no test at all, as for any file that cannot be collected."""
    assert len(marks.collect_errors) == len(MARKS) + len(PLACES)
    assert marks.results == {}
    assert "ran all the same" not in marks.output
    assert "INTERNALERROR" not in marks.output
    assert marks.returncode == pytest.ExitCode.INTERRUPTED


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--ddp-world-size=0", ["--ddp-world-size=0", "at least 1 rank"]),
        ("--ddp-isolate=yes", ["--ddp-isolate"]),
        ("--ddp-nproc=2", ["--ddp-nproc=2"]),
        ("-oddp_timeout=soon", ["ini option ddp_timeout", "number of seconds above 0"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_option(suite: Suite, option: str, words: list[str]) -> None:
    suite.write("test_plain.py", PLAIN)
    finished = suite.run(option)
    assert finished.returncode == pytest.ExitCode.USAGE_ERROR
    assert finished.flat.count("ERROR: ") == 1
    for word in words:
        assert word in finished.flat
    assert "Traceback" not in finished.output
    assert "INTERNALERROR" not in finished.output
    assert finished.results == {}


# ---------------------------------------------------------------- the ranks see another suite

RANDOM = """
    import uuid

    import pytest


    @pytest.mark.ddp(world_size=2)
    @pytest.mark.parametrize("name", [uuid.uuid4().hex])
    def test_random(ddp, name):
        pass


    @pytest.mark.ddp(world_size=2)
    def test_after(ddp):
        assert ddp.gather(ddp.rank) == [0, 1]
"""


@pytest.mark.skipif(UNDER_XDIST, reason="pytest-xdist refuses such a suite by itself")
def test_random_collection(suite: Suite) -> None:
    suite.write("test_random.py", RANDOM)
    finished = suite.run(timeout=30)
    random = next(result for nodeid, result in finished.results.items() if "test_random[" in nodeid)
    text = " ".join(random.text.split())
    assert random.verdict == "error"
    assert random.nodeid.partition("::")[0] in text
    assert "Collection differs between two processes" in text
    assert "Make parameters and ids deterministic" in text
    assert finished["test_after"].verdict == "passed"
    assert finished.returncode == pytest.ExitCode.TESTS_FAILED


UNORDERED = """
    import os

    import pytest
    import torch
    import torch.distributed as dist

    NAMED = {(name, len(name)) for name in ("full", "local", "sharded", "offloaded", "mixed", "a")}
    pytestmark = pytest.mark.ddp(world_size=2)


    @pytest.mark.parametrize("size", [3, 2])
    @pytest.mark.parametrize("config", NAMED)
    def test_set(ddp, config, size):
        dist.all_reduce(torch.ones(config[1]))


    @pytest.mark.parametrize("config", [pytest.param([name]) for name, _ in NAMED])
    def test_list_of_set(ddp, config):
        pass


    @pytest.fixture(params=dict.fromkeys(NAMED))
    def config(request):
        return request.param


    class TestFixture:
        def test_it(self, ddp, config):
            pass


    @pytest.mark.parametrize("config", sorted(NAMED))
    def test_sorted(ddp, config):
        assert len({*ddp.gather(config)}) == 1


    @pytest.mark.parametrize("config", NAMED, ids=str)
    def test_named(ddp, config):
        assert len({*ddp.gather(config)}) == 1


    @pytest.mark.parametrize("device", [("cpu", os.environ.get("RANK"))])
    def test_of_rank(ddp, device):
        assert device == ("cpu", str(ddp.rank))
"""


def test_parameters_from_a_set_differ_between_interpreters(suite: Suite) -> None:
    suite.write("test_unordered.py", UNORDERED)
    finished = suite.run("--ddp-start-method=spawn", extra=())
    verdicts: dict[str, set[str]] = {}
    for nodeid, result in finished.results.items():
        verdicts.setdefault(nodeid.partition("[")[0].rpartition("::")[2], set()).add(result.verdict)
    # One of six may have the same place in both orders by chance.
    for name in ("test_set", "test_list_of_set", "test_it"):
        assert "error" in verdicts.pop(name), finished.tail()
    assert verdicts == {name: {"passed"} for name in ("test_sorted", "test_named", "test_of_rank")}
    text = next(result.text for result in finished.results.values() if result.verdict == "error")
    assert re.search(
        r"ranks 0-1 could not begin: parameter config is \('\w+', \d\) on rank 0,", text
    )
    assert "failed" not in {result.verdict for result in finished.results.values()}


def test_file_that_only_ranks_cannot_import(suite: Suite) -> None:
    suite.write(
        "test_import.py",
        """
        import sys

        import pytest

        if "torch" in sys.modules:
            raise RuntimeError("not beside torch")


        @pytest.mark.ddp(world_size=2)
        def test_marked(ddp):
            pass
        """,
    )
    suite.write(
        "test_other.py",
        """
        import pytest


        @pytest.mark.ddp(world_size=2)
        def test_other(ddp):
            assert ddp.gather(ddp.rank) == [0, 1]
        """,
    )
    suite.fresh = True  # the file asks whether torch is imported
    finished = suite.run(timeout=30)
    result = finished["test_marked"]
    assert result.verdict == "error"
    assert "could not be collected in the rank" in " ".join(result.text.split())
    assert "RuntimeError: not beside torch" in result.text
    assert "test_import.py:7" in result.text
    assert finished["test_other"].verdict == "passed"
    assert finished.returncode == pytest.ExitCode.TESTS_FAILED


BROKEN_HOST = """
    import os

    import pytest


    def pytest_configure(config):
        if hasattr(config, "workerinput"):
            {statement}
"""

FOUR_TESTS = """
    import pytest


    @pytest.mark.ddp(world_size=2)
    def test_first(ddp):
        pass


    @pytest.mark.ddp(world_size=2)
    def test_second(ddp):
        pass


    @pytest.mark.ddp(world_size=2)
    def test_third(ddp):
        pass


    def test_plain():
        pass
"""


@pytest.fixture(
    scope="module",
    params=[
        ("raise RuntimeError('bad luck')", "RuntimeError: bad luck"),
        ("raise pytest.UsageError('bad luck')", "bad luck"),
        ("raise SystemExit('bad luck')", "bad luck"),
        # Both ranks end, and either may be the first.
        ("os._exit(5)", r"no rank can be started: rank [01] exited with code 5 at its start"),
    ],
    ids=["error", "usage error", "SystemExit", "exit"],
)
def broken(request: pytest.FixtureRequest, new_suite: Callable[[], Suite]) -> tuple[Finished, str]:
    """A run whose host cannot come up, and the words that the error must have."""
    if UNDER_XDIST:
        pytest.skip("such a conftest breaks the workers of pytest-xdist, too")
    statement, words = request.param
    suite = new_suite()
    suite.write("conftest.py", BROKEN_HOST.format(statement=statement))
    suite.write("test_four.py", FOUR_TESTS)
    return suite.run(timeout=40), words


def test_broken_host_is_reported_with_the_first_test(broken: tuple[Finished, str]) -> None:
    finished, words = broken
    first = finished["test_first"]
    assert first.verdict == "error"
    assert re.search(words, first.text)


def test_later_tests_refer_to_the_second_that_failed_alike(broken: tuple[Finished, str]) -> None:
    finished, words = broken
    assert finished["test_second"].verdict == "error"
    third = finished["test_third"]
    assert third.verdict == "error"
    assert "test_four.py::test_second" in third.text
    assert not re.search(words, third.text)


def test_broken_host_leaves_other_tests_alone(broken: tuple[Finished, str]) -> None:
    finished, _ = broken
    assert finished["test_plain"].verdict == "passed"
    assert finished.returncode == pytest.ExitCode.TESTS_FAILED


# ---------------------------------------------------------------- GPUs that are not there

NCCL = """
    import pytest


    @pytest.mark.ddp(world_size=3)
    def test_by_option(ddp):
        pass


    @pytest.mark.ddp(world_size=3, backend="nccl")
    def test_by_mark(ddp):
        pass


    @pytest.mark.ddp(world_size="gpus")
    def test_gpus(ddp):
        pass


    @pytest.mark.ddp(world_size=2, backend="gloo")
    def test_gloo(ddp):
        assert ddp.backend == "gloo"
"""


@pytest.fixture(scope="module")
def without_gpus(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_nccl.py", NCCL)
    return suite.run("--ddp-backend=nccl", "-rs", env={"CUDA_VISIBLE_DEVICES": ""}, timeout=30)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("by_option", "3 needed, 0 found"),
        ("by_mark", "3 needed, 0 found"),
        ("gpus", "0 found"),
    ],
)
def test_too_few_gpus_is_a_skip(without_gpus: Finished, name: str, reason: str) -> None:
    result = without_gpus[f"test_{name}"]
    assert result.verdict == "skipped"
    assert reason in result.text
    assert reason in without_gpus.stdout


def test_gpus_are_not_asked_of_gloo(without_gpus: Finished) -> None:
    assert without_gpus["test_gloo"].verdict == "passed"
    assert without_gpus.returncode == pytest.ExitCode.OK
