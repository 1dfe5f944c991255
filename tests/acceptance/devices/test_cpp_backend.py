"""A backend in C++, built here by ``torch.utils.cpp_extension`` as its authors would."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.suite import Finished, Suite
from tests.warm import interpreter

pytestmark = pytest.mark.skipif(
    not (shutil.which("c++") and shutil.which("ninja")), reason="builds with c++ and ninja"
)

BUILD = """
import sys
from torch.utils.cpp_extension import load

load("dummy_backend", [sys.argv[1]], build_directory=sys.argv[2], extra_cflags=["-O0"])
"""

CONFTEST = """
    import sys

    import torch
    import torch.distributed as dist

    sys.path.insert(0, {folder!r})
    import dummy_backend

    dist.Backend.register_backend("dummy", dummy_backend.create, devices=["cpu"])
"""

SOURCE = """
    import os

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=3, backend="dummy")


    def test_good(ddp):
        assert ddp.backend == dist.get_backend() == "dummy"
        tensor = torch.zeros(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 1
        dist.barrier()


    def test_good_and_unequal(ddp):
        for _ in range(ddp.rank):  # nobody can know: it gives its collectives no numbers
            dist.all_reduce(torch.zeros(1))


    def test_good_messages(ddp):
        if ddp.rank == 0:
            dist.send(torch.ones(1), dst=1)


    def test_bad(ddp):
        tensor = torch.zeros(1)
        dist.all_reduce(tensor)
        assert tensor.item() == ddp.rank


    def test_bad_operation(ddp):
        dist.broadcast(torch.zeros(1), src=0)


    def test_bad_death(ddp):
        if ddp.rank == 1:
            os._exit(4)
        dist.barrier()


    def test_good_after_it(ddp):
        dist.barrier()
"""


@pytest.fixture(scope="module")
def finished(new_suite: Callable[[], Suite], tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("dummy")
    source = Path(__file__).with_name("dummy.cpp")
    built = interpreter.run(["-c", BUILD, str(source), str(folder)], timeout=400)
    assert built.returncode == 0, built.stderr
    suite = new_suite()
    suite.write("conftest.py", CONFTEST.format(folder=str(folder)))
    suite.write("test_dummy.py", SOURCE)
    return suite.run(timeout=60)


@pytest.mark.parametrize("name", ["good", "good_and_unequal", "good_messages", "good_after_it"])
def test_good(finished: Finished, name: str) -> None:
    assert finished[f"test_{name}"].verdict == "passed", finished[f"test_{name}"].text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bad", "assert 1.0 == 0"),
        ("bad_operation", "does not support broadcast"),
        ("bad_death", "rank 1 exited with code 4"),
    ],
)
def test_bad(finished: Finished, name: str, words: str) -> None:
    result = finished[f"test_{name}"]
    assert result.verdict == "failed"
    assert words in result.text
