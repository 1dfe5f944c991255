"""Wrong marks, options and suites: told clearly, with pytest's own exit codes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import UNDER_XDIST, Finished, Suite

ONE_TEST = """
    import unittest

    import pytest


    def test_plain():
        print("ran all the same")


    {code}
"""


def assert_usage_error(finished: Finished, *words: str) -> None:
    """pytest's exit code, the words, one ``ERROR:`` and nothing of our insides."""
    assert finished.returncode == pytest.ExitCode.USAGE_ERROR, finished.tail()
    for word in words:
        assert word in finished.flat, finished.tail()
    assert "Traceback" not in finished.output
    assert "INTERNALERROR" not in finished.output
    assert finished.results == {}


# ---------------------------------------------------------------- marks


@pytest.mark.skipif(UNDER_XDIST, reason="pytest-xdist reports its workers' usage errors its way")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("world_size=0", ["world_size=0", "at least 1 rank"]),
        ("world_size=-2", ["world_size=-2", "at least 1 rank"]),
        ("world_size='four'", ["world_size='four'", "Write one, such as 4"]),
        ("world_size=[]", ["world_size=[]", "at least one"]),
        ("world_size=[1, 0]", ["world_size=[1, 0]", "at least 1 rank"]),
        ("world_size=True", ["world_size=True", "whole number"]),
        ("world_size=10**6", ["world_size=1000000", "from 1 to"]),
        ("world_size=2.0", ["world_size=2.0", "whole number"]),
        ("world_size=None", ["world_size=None", "whole number"]),
        ("2", ["arguments go by name", "world_size=2"]),
        ("'gloo'", ["arguments go by name", "backend='gloo'"]),
        ("world_sizes=2", ["world_sizes=2", "Did you mean world_size?"]),
        ("nproc=2", ["nproc=2", "no such argument", "world_size"]),
        ("backend='mpi'", ["backend='mpi'", "one of auto, gloo and nccl"]),
        ("timeout=0", ["timeout=0", "number of seconds above 0"]),
        ("timeout='5 min'", ["timeout='5 min'", "number of seconds"]),
        ("seed=-1", ["seed=-1", "whole number from 0"]),
        ("init='no'", ["init='no'", "either True or False"]),
        ("isolate=1", ["isolate=1", "either True or False"]),
        ("env=['A=1']", ["env=['A=1']", "dict of strings"]),
        ("env={'RANK': '7'}", ["RANK is set for each rank by the plugin"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_mark(suite: Suite, arguments: str, words: list[str]) -> None:
    code = f"@pytest.mark.ddp({arguments})\n    def test_marked(ddp): pass"
    suite.write("test_bad.py", ONE_TEST.format(code=code))
    finished = suite.run()
    assert_usage_error(finished, "ERROR: test_bad.py::test_marked", *words)


@pytest.mark.skipif(UNDER_XDIST, reason="pytest-xdist reports its workers' usage errors its way")
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "@pytest.mark.ddp(world_size=2)\n    async def test_marked(ddp): yield",
            ["test_bad.py::test_marked", "has a yield", "fixture"],
        ),
        (
            "@pytest.mark.ddp(world_size=[1, 2])\n    class TestCase(unittest.TestCase):\n"
            "        def test_marked(self): pass",
            ["TestCase::test_marked", "world_size=[1, 2]", "unittest.TestCase", "one world size"],
        ),
        (
            "@pytest.mark.ddp(world_size=0)\n    class TestMarked:\n"
            "        def test_marked(self): pass",
            ["TestMarked::test_marked", "world_size=0", "This mark is on test_bad.py::TestMarked"],
        ),
        (
            "pytestmark = pytest.mark.ddp(world_size=0)",
            ["test_bad.py::test_plain", "world_size=0", "This mark is on test_bad.py"],
        ),
    ],
    ids=["async generator", "list on a TestCase", "class", "module"],
)
def test_mark_in_a_wrong_place(suite: Suite, code: str, words: list[str]) -> None:
    suite.write("test_bad.py", ONE_TEST.format(code=code))
    assert_usage_error(suite.run(), *words)


def test_mark_on_a_fixture(suite: Suite) -> None:
    """pytest refuses it by itself, as a collection error."""
    code = "@pytest.mark.ddp(world_size=2)\n    @pytest.fixture\n    def marked(): pass"
    suite.write("test_bad.py", ONE_TEST.format(code=code))
    finished = suite.run(timeout=30)
    assert finished.returncode != pytest.ExitCode.OK
    assert "Marks cannot be applied to fixtures" in finished.flat
    assert "ran all the same" not in finished.output


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--ddp-world-size=0", ["--ddp-world-size=0", "at least 1 rank"]),
        ("--ddp-world-size=four", ["--ddp-world-size=four", "whole number"]),
        ("--ddp-world-size=2.0", ["--ddp-world-size=2.0", "whole number"]),
        ("--ddp-world-size=1000000", ["--ddp-world-size=1000000", "from 1 to"]),
        ("--ddp-timeout=0", ["--ddp-timeout=0", "number of seconds above 0"]),
        ("--ddp-timeout=nan", ["--ddp-timeout=nan", "number of seconds above 0"]),
        ("--ddp-timeout=soon", ["--ddp-timeout=soon", "number of seconds above 0"]),
        ("--ddp-backend=mpi", ["--ddp-backend=mpi", "one of auto, gloo and nccl"]),
        ("--ddp-start-method=thread", ["--ddp-start-method=thread", "fork and spawn"]),
        ("--ddp-seed=-1", ["--ddp-seed=-1", "whole number from 0"]),
        ("--ddp-output=none", ["--ddp-output=none", "failed, all and rank0"]),
        ("--ddp-isolate=yes", ["--ddp-isolate"]),
        ("--ddp-nproc=2", ["--ddp-nproc=2"]),
        ("-oddp_world_size=0", ["ini option ddp_world_size=0", "at least 1 rank"]),
        ("-oddp_world_size=four", ["ini option ddp_world_size", "whole number"]),
        ("-oddp_timeout=soon", ["ini option ddp_timeout", "number of seconds above 0"]),
        ("-oddp_backend=mpi", ["ini option ddp_backend=mpi", "one of auto, gloo and nccl"]),
        ("-oddp_isolate=perhaps", ["ini option ddp_isolate", "True or False"]),
        ("-oddp_output=none", ["ini option ddp_output=none", "failed, all and rank0"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_option(suite: Suite, option: str, words: list[str]) -> None:
    suite.write("test_plain.py", "def test_plain(): print('ran all the same')\n")
    assert_usage_error(suite.run(option), *words)


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
    assert "collection differs between two processes" in text
    assert "Make parameters and ids deterministic" in text
    assert finished["test_after"].verdict == "passed"
    assert finished.returncode == pytest.ExitCode.TESTS_FAILED


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

THREE_TESTS = """
    import pytest


    @pytest.mark.ddp(world_size=2)
    def test_first(ddp):
        pass


    @pytest.mark.ddp(world_size=2)
    def test_second(ddp):
        pass


    def test_plain():
        pass
"""


@pytest.mark.skipif(UNDER_XDIST, reason="such a conftest breaks the workers of pytest-xdist, too")
class TestBrokenHost:
    """A host that cannot come up is told once; later tests refer to it and cost nothing."""

    @pytest.fixture(
        scope="class",
        params=[
            ("raise RuntimeError('bad luck')", "RuntimeError: bad luck"),
            ("raise pytest.UsageError('bad luck')", "bad luck"),
            ("os._exit(5)", "exit code 5"),
            ("raise SystemExit('bad luck')", "bad luck"),
        ],
        ids=["error", "usage error", "exit", "SystemExit"],
    )
    def case(
        self, request: pytest.FixtureRequest, new_suite: Callable[[], Suite]
    ) -> tuple[Finished, str]:
        statement, words = request.param
        suite = new_suite()
        suite.write("conftest.py", BROKEN_HOST.format(statement=statement))
        suite.write("test_three.py", THREE_TESTS)
        return suite.run(timeout=40), words

    def test_first_test_says_why(self, case: tuple[Finished, str]) -> None:
        finished, words = case
        first = finished["test_first"]
        assert first.verdict == "error"
        assert words in first.text

    def test_later_test_refers_to_the_first(self, case: tuple[Finished, str]) -> None:
        finished, words = case
        second = finished["test_second"]
        assert second.verdict == "error"
        assert "test_three.py::test_first" in second.text
        assert finished.stdout.count(f"{words}\n") == 1

    def test_other_tests_run(self, case: tuple[Finished, str]) -> None:
        finished, _ = case
        assert finished["test_plain"].verdict == "passed"
        assert finished.returncode == pytest.ExitCode.TESTS_FAILED
        assert "INTERNALERROR" not in finished.output


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
