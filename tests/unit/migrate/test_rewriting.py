"""Which spawning tests become ddp tests, what is left of them, and what is not touched."""

from __future__ import annotations

from textwrap import dedent

import pytest

from pytest_ddp.migrate.rewriting import Result, rewrite

HEAD = """\
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
"""

SETUP = """

def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29500"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def cleanup():
    dist.destroy_process_group()
"""

WORKER = """

def add(rank, world_size):
    setup(rank, world_size)
    # all of them
    total = torch.tensor(rank)
    dist.all_reduce(total)
    assert total == world_size - 1
    cleanup()
"""

TEST = """

def test_add():
    mp.spawn(add, args=(2,), nprocs=2)
"""


def left(text: str, *tests: str) -> dict[str, str]:
    """Why each test is left; the file is then as it was."""
    result = rewrite(text, tests or ("test_add",))
    assert result.source == text
    return result.left


def done(text: str, *tests: str) -> str:
    result = rewrite(text, tests or ("test_add",))
    assert result.left == {}
    return result.source


def test_helpers_that_make_a_rank_go() -> None:
    assert done(HEAD + SETUP + WORKER + TEST) == dedent("""\
        import torch
        import torch.distributed as dist
        import pytest


        def add(rank, world_size):
            # all of them
            total = torch.tensor(rank)
            dist.all_reduce(total)
            assert total == world_size - 1


        @pytest.mark.ddp(world_size=2)
        def test_add(ddp):
            add(ddp.rank, 2)
        """)


def test_in_the_function_itself() -> None:
    worker = """

    def add(rank, port, factor):
        os.environ.setdefault("MASTER_ADDR", "localhost")
        os.environ["MASTER_PORT"] = str(port)
        dist.init_process_group(backend="nccl", rank=rank, world_size=2)
        torch.manual_seed(0)
        try:
            dist.all_reduce(torch.ones(1) * factor)
        finally:
            dist.destroy_process_group()
    """
    test = """

    def test_add(tmp_path):
        \"\"\"Adds.\"\"\"
        size = 2
        port = free_port()
        factor = 3.0
        mp.spawn(add, args=(port, factor), nprocs=size, join=True)
    """
    source = done(HEAD + dedent(worker) + dedent(test))
    assert source.endswith(
        dedent("""

        def add(rank, factor):
            torch.manual_seed(0)
            dist.all_reduce(torch.ones(1) * factor)


        @pytest.mark.ddp(world_size=2, backend="nccl")
        def test_add(ddp, tmp_path):
            \"\"\"Adds.\"\"\"
            factor = 3.0
            add(ddp.rank, factor)
        """)
    )


def test_two_tests_of_one_function() -> None:
    source = done(
        HEAD + SETUP + WORKER + TEST + TEST.replace("_add", "_again"), "test_add", "test_again"
    )
    assert source.count("pytest.mark.ddp") == 2


def test_decorators_stay() -> None:
    test = TEST.replace("def test", "@pytest.mark.skipif(os.name == 'nt', reason='no')\ndef test")
    source = done(HEAD + "import pytest\n" + SETUP + WORKER + test)
    assert "@pytest.mark.skipif(os.name == 'nt', reason='no')\n@pytest.mark.ddp(" in source
    assert source.startswith("import os\n")


CHANGES = {
    "it does more than spawn": ("mp.spawn(add", "print()\n    mp.spawn(add"),
    "it does not end with torch.multiprocessing.spawn": (
        "mp.spawn(add, args=(2,), nprocs=2)",
        "x = 1\n    print()",
    ),
    "it does not join, or names a start method": ("nprocs=2", "nprocs=2, join=False"),
    "its nprocs is no number that the file tells": ("nprocs=2", "nprocs=torch.cuda.device_count()"),
    "its args are no tuple in the call": ("args=(2,)", "args=arguments"),
    "what it spawns is no function of this file": ("spawn(add", "spawn(print"),
    "it has a parameter named ddp": ("test_add()", "test_add(ddp)"),
    "it hands over mp.Queue(), which is made before the ranks": ("args=(2,)", "args=(mp.Queue(),)"),
    "add is used elsewhere too": ("def test_add", "other = add\n\n\ndef test_add"),
    "add has decorators, or parameters of a special kind": ("def add(rank,", "def add(*rank,"),
    "init_process_group is given timeout": ('"gloo",', '"gloo", timeout=timedelta(1),'),
    "its backend is no text in the call": ('"gloo",', "BACKEND,"),
    "add does not call init_process_group once, in a line of its own": ("    setup(", "    print("),
    "add makes or destroys its process group within other statements": (
        "    cleanup()\n\n\ndef test",
        "    if rank:\n        dist.destroy_process_group()\n\n\ndef test",
    ),
}


@pytest.mark.parametrize("reason", CHANGES)
def test_what_could_lose_something_is_left(reason: str) -> None:
    old, new = CHANGES[reason]
    text = HEAD + SETUP + WORKER + TEST
    assert old in text
    assert left(text.replace(old, new)) == {"test_add": reason}


def test_one_that_is_left_keeps_its_function_for_all() -> None:
    text = (
        HEAD
        + SETUP
        + WORKER
        + TEST
        + TEST.replace("_add", "_again").replace("nprocs=2", "nprocs=n")
    )
    assert set(left(text, "test_add", "test_again")) == {"test_add", "test_again"}


def test_a_helper_that_is_used_elsewhere_stays() -> None:
    other = "\n\ndef test_other():\n    setup(0, 1)\n"
    source = done(HEAD + SETUP + WORKER + TEST + other)
    assert "def setup(rank, world_size):" in source
    assert "def cleanup" not in source


def test_a_function_that_calls_itself_ends() -> None:
    text = HEAD + SETUP + WORKER.replace("    cleanup()", "    turn()") + TEST
    result = rewrite(text + "\n\ndef turn():\n    turn()\n", ["test_add"])
    assert isinstance(result, Result)
    assert "    turn()" in result.source


def test_methods_are_left() -> None:
    assert rewrite(HEAD, ["TestAdd::test_add"]).left == {"TestAdd::test_add": "it is a method"}
