"""``python -m pytest_ddp migrate`` as a user runs it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.acceptance.suite import Suite
from tests.environment import without_outer_run
from tests.warm import interpreter

SPAWNING = """
import contextlib
import os
import socket

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing import spawn


def setup(rank, port):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=2)


def free_port():
    # Below those that the kernel gives to other programs, before a rank listens here.
    for port in range(10000 + os.getpid() * 37 % 20000, 32768):
        with socket.socket() as listening, contextlib.suppress(OSError):
            listening.bind(("localhost", port))
            return port


def add(rank, port, expected):
    setup(rank, port)
    total = torch.tensor(rank)
    dist.all_reduce(total)
    assert total == expected
    dist.destroy_process_group()


def write(rank, folder, port):
    setup(rank, port)
    # One folder for all of them, and generators of their own.
    torch.save(torch.rand(3), folder / str(rank))
    dist.barrier()
    a, b = (torch.load(folder / str(other)) for other in range(2))
    assert not torch.equal(a, b)
    dist.destroy_process_group()


@pytest.mark.parametrize("expected", [1, 2])
def test_add(expected):
    spawn(add, args=(free_port(), expected), nprocs=2)


def test_write(tmp_path):
    spawn(write, args=(tmp_path, free_port()), nprocs=2)


def test_left():
    with pytest.raises(Exception, match="boom"):
        spawn(raises, nprocs=2)


def raises(rank):
    raise ValueError("boom")
"""


def migrate(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ("-m", "pytest_ddp", "migrate", *arguments)
    return interpreter.run(command, timeout=120, cwd=directory, env=without_outer_run())


def test_each_way_is_reported(suite: Suite) -> None:
    suite.write("tests/test_spawning.py", SPAWNING)
    suite.write("tests/test_plain.py", "def test_it(): ...")
    suite.write("tests/test_marked.py", "import pytest\n@pytest.mark.ddp\ndef test_it(ddp): ...")
    suite.write(
        "tests/test_case.py",
        "from torch.testing._internal.common_distributed import MultiProcessTestCase\n"
        "class TestIt(MultiProcessTestCase):\n    def test_it(self): ...",
    )
    run = migrate(suite.directory, "tests")
    assert (run.returncode, run.stdout) == (
        0,
        "tests/test_case.py\n"
        "  --ddp-adopt=testcase: derives from torch's MultiProcessTestCase\n"
        "    TestIt::test_it\n"
        "tests/test_marked.py\n"
        "  a ddp test already\n"
        "    test_it\n"
        "tests/test_spawning.py\n"
        "  --ddp-adopt=spawn: calls torch.multiprocessing.spawn\n"
        "    test_add, test_write, test_left\n"
        "\n"
        "6 tests: 3 by --ddp-adopt=spawn, 1 by --ddp-adopt=testcase, 1 ddp already, "
        "1 where nothing distributed was found\n"
        "try: pytest --ddp-adopt=spawn,testcase tests\n",
    ), run.stderr


RANKED = """
import os
import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

RANK = os.environ["RANK"]


@pytest.mark.world_size(2)
def test_two():
    dist.barrier()


@pytest.mark.world_size(4)
def test_four():
    dist.barrier()
"""


def test_each_route_has_its_command(suite: Suite) -> None:
    suite.write("test_ranked.py", RANKED)
    suite.write("test_mixed.py", f"{RANKED}\n\ndef test_spawns():\n    mp.spawn(print)\n")
    run = migrate(suite.directory, ".")
    assert run.stdout == (
        "test_mixed.py\n"
        "  --ddp-everywhere=2: calls torch.distributed.barrier, and expects to be a rank\n"
        "    test_two\n"
        "  --ddp-everywhere=4: calls torch.distributed.barrier, and expects to be a rank\n"
        "    test_four\n"
        "  --ddp-adopt=spawn: calls torch.multiprocessing.spawn\n"
        "    test_spawns\n"
        "test_ranked.py\n"
        "  --ddp-everywhere=2: calls torch.distributed.barrier, and expects to be a rank\n"
        "    test_two\n"
        "  --ddp-everywhere=4: calls torch.distributed.barrier, and expects to be a rank\n"
        "    test_four\n"
        "\n"
        "5 tests: 1 by --ddp-adopt=spawn, 4 by --ddp-everywhere=N\n"
        "try: pytest --ddp-adopt=spawn .\n"
        "     pytest --ddp-everywhere=2 test_mixed.py::test_two test_ranked.py\n"
        "     pytest --ddp-everywhere=4 test_mixed.py::test_four test_ranked.py\n"
    ), run.stderr


def test_what_torch_cannot_import_leaves_the_rest_of_the_report(suite: Suite) -> None:
    suite.write(
        "test_backend.py",
        "from torch.testing._internal.distributed.distributed_test import TestDistBackend\n"
        "class TestIt(TestDistBackend):\n    def test_it(self): ...",
    )
    suite.write("test_spawning.py", SPAWNING)
    run = migrate(suite.directory, ".")
    assert (run.returncode, run.stdout) == (
        0,
        "test_backend.py\n"
        "  not known: the import of TestDistBackend raised KeyError: 'BACKEND'\n"
        "    TestIt::test_it\n"
        "test_spawning.py\n"
        "  --ddp-adopt=spawn: calls torch.multiprocessing.spawn\n"
        "    test_add, test_write, test_left\n"
        "\n"
        "4 tests: 3 by --ddp-adopt=spawn, 1 not known\n"
        "try: pytest --ddp-adopt=spawn .\n",
    ), run.stderr


def test_bad_input_is_reported(suite: Suite) -> None:
    run = migrate(suite.directory, "nowhere")
    assert (run.returncode, run.stderr) == (2, "error: no such file or folder: nowhere\n")
    suite.write("test_it.py", "def test_it(:")
    run = migrate(suite.directory, ".")
    assert run.returncode == 1
    assert "test_it.py could not be read: invalid syntax (test_it.py, line 1)" in run.stdout
