"""Which way a test of an existing suite is found to come aboard."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from pytest_ddp.migrate.routes import Found, Route, routes
from pytest_ddp.migrate.suite import Suite

SPAWN = """
import torch.multiprocessing as mp
def work(rank): ...
def test_it():
    mp.spawn(work, nprocs=2)
"""


def found(folder: Path, **files: str) -> dict[str, Found]:
    """By the test's name, of a suite with these files; ``conftest`` and others need no test."""
    for name, text in files.items():
        file = folder / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
    return {one.test.name: one for one in routes(Suite.read([folder]))}


def route(folder: Path, text: str, **files: str) -> Route:
    (one,) = found(folder, test_it=text, **files).values()
    return one.route


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SPAWN, Route.SPAWN),
        ("from torch.multiprocessing import spawn as go\ndef test_it(): go(print)", Route.SPAWN),
        (
            "import torch\ndef test_it():\n torch.multiprocessing.start_processes(print)",
            Route.SPAWN,
        ),
        (
            "import multiprocessing as mp\ndef test_it():\n"
            " mp.get_context('spawn').Process(target=print).start()",
            Route.SPAWN,
        ),
        (
            "import multiprocessing as m\nm.set_start_method('spawn')\ndef test_it(): m.Process()",
            Route.SPAWN,
        ),
        (
            "import multiprocessing as m\ndef test_it():\n m.set_start_method('spawn')\n"
            " m.Process()",
            Route.SPAWN,
        ),
        (
            "from torch.multiprocessing import start_processes\n"
            "def test_it(): start_processes(print, start_method='fork')",
            Route.NONE,
        ),
        ("import multiprocessing as mp\ndef test_it(): mp.Process(target=print)", Route.NONE),
        ("from torch.multiprocessing import Pool\ndef test_it(): Pool(2)", Route.NONE),
        ("import multiprocessing as m\ndef test_it(): m.get_context('fork').Pool(2)", Route.NONE),
        (
            "import multiprocessing as m\ndef test_it():\n c = m.get_context('spawn')\n c.Pool(2)",
            Route.SPAWN,
        ),
        (
            "import subprocess\ndef test_it(): subprocess.run(['torchrun', 'train.py'])",
            Route.NONE,
        ),
        (
            "import subprocess, sys\ndef test_it():\n"
            " subprocess.run([sys.executable, '-m', 'torch.distributed.run', 'train.py'])",
            Route.NONE,
        ),
        ("import subprocess\ndef test_it(): subprocess.run(['ls'])", Route.PLAIN),
        (
            "import torch.distributed as dist\ndef test_it():\n dist.init_process_group('gloo')",
            Route.EVERYWHERE,
        ),
        (
            "import torch.distributed as dist\ndef test_it():\n"
            " dist.init_process_group('gloo', rank=0, world_size=1)\n dist.barrier()",
            Route.PLAIN,
        ),
        ("import torch.distributed as dist\ndef test_it(): dist.is_available()", Route.PLAIN),
        (
            "import os, torch.distributed as dist\nWORLD_SIZE = os.environ['WORLD_SIZE']\n"
            "def test_it(): dist.barrier()",
            Route.EVERYWHERE,
        ),
        ("import pytest\n@pytest.mark.ddp(world_size=2)\ndef test_it(ddp): ...", Route.DDP),
        ("import pytest\npytestmark = pytest.mark.ddp\ndef test_it(ddp): ...", Route.DDP),
        ("import pytest\n@pytest.mark.ddp\nclass TestIt:\n def test_it(self): ...", Route.DDP),
        ("def test_it(): ...", Route.PLAIN),
    ],
)
def test_what_a_test_calls(tmp_path: Path, text: str, expected: Route) -> None:
    assert route(tmp_path, text) is expected


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("torch.testing._internal.common_distributed.MultiProcessTestCase", Route.TESTCASE),
        ("torch.testing._internal.common_distributed.DistributedTestBase", Route.TESTCASE),
        ("torch.testing._internal.common_distributed.MultiProcContinuousTest", Route.TESTCASE),
        ("torch.testing._internal.common_distributed.MultiThreadedTestCase", Route.PLAIN),
        ("torch.testing._internal.common_fsdp.FSDPTest", Route.TESTCASE),
        ("torch.testing._internal.nowhere.Gone", Route.PLAIN),
        ("unittest.TestCase", Route.PLAIN),
    ],
)
def test_what_a_class_derives_from(tmp_path: Path, base: str, expected: Route) -> None:
    module, _, name = base.rpartition(".")
    text = f"from {module} import {name}\nclass TestIt({name}):\n def test_it(self): ..."
    assert route(tmp_path, text) is expected


def test_a_base_of_another_file_and_its_base(tmp_path: Path) -> None:
    text = """
    from .common import Base
    class TestIt(Base):
        def test_it(self): ...
    """
    common = """
    from torch.testing._internal.common_distributed import MultiProcessTestCase
    class Base(MultiProcessTestCase): ...
    """
    assert route(tmp_path, dedent(text), common=common) is Route.TESTCASE


def test_a_copy_of_deepspeeds_base_above_the_folder(tmp_path: Path) -> None:
    (tmp_path / "unit").mkdir()
    (tmp_path / "unit" / "common.py").write_text(
        dedent("""
        class DistributedExec:
            def _launch_procs(self, n): ...
            def _dist_run(self, rank): ...
        class DistributedTest(DistributedExec): ...
        """)
    )
    text = """
    from unit.common import DistributedTest
    class TestIt(DistributedTest):
        def test_it(self): ...
    """
    assert route(tmp_path / "unit" / "runtime", dedent(text)) is Route.TESTCASE


HELPERS = {
    "a function of another file": {
        "test_it": "from helpers import launch\ndef test_it(): launch(2)",
        "helpers": SPAWN.replace("test_it()", "launch(n)"),
    },
    "one in a package": {
        "tests__test_it": "from tests.util.helpers import launch\ndef test_it(): launch(2)",
        "tests__util__helpers": SPAWN.replace("test_it()", "launch(n)"),
    },
    "by its module": {
        "test_it": "import helpers\ndef test_it(): helpers.launch(2)",
        "helpers": SPAWN.replace("test_it()", "launch(n)"),
    },
    "a fixture": {
        "test_it": "def test_it(launched): ...",
        "conftest": "import pytest\n"
        + SPAWN.replace("def test_it", "@pytest.fixture\ndef launched"),
    },
    "a fixture by its mark": {
        "test_it": "import pytest\n@pytest.mark.usefixtures('launched')\ndef test_it(): ...",
        "conftest": "import pytest\n"
        + SPAWN.replace("def test_it", "@pytest.fixture\ndef launched"),
    },
    "a method": {
        "test_it": SPAWN.replace(
            "def test_it():", "class TestIt:\n  def test_it(self): self.go()\n  def go(self):"
        ).replace("    mp.", "      mp."),
    },
    "a set-up": {
        "test_it": SPAWN.replace(
            "def test_it():", "class TestIt:\n  def test_it(self): ...\n  def setup_method(self):"
        ).replace("    mp.", "      mp."),
    },
}


@pytest.mark.parametrize("how", HELPERS)
def test_what_it_comes_to_by_others(tmp_path: Path, how: str) -> None:
    (one,) = found(tmp_path, **HELPERS[how]).values()
    assert one.route is Route.SPAWN


def test_a_pool_that_conftest_has_made(tmp_path: Path) -> None:
    conftest = """
    import pytest
    from torch.multiprocessing import Pool, set_start_method
    def pytest_sessionstart():
        pytest.pool = Pool(2)
    """
    text = """
    import pytest
    import torch.distributed as dist
    def work(rank):
        dist.init_process_group("gloo", rank=rank, world_size=2)
        dist.barrier()
    def test_it():
        pytest.pool.map(work, range(2))
    def test_alone(): ...
    """
    way = found(tmp_path, test_it=text, conftest=conftest)
    assert (way["test_it"].route, way["test_alone"].route) == (Route.NONE, Route.PLAIN)


def test_a_file_that_is_no_python_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(:")
    suite = Suite.read([tmp_path])
    assert list(suite.broken) == [tmp_path / "test_it.py"]


def test_a_file_of_another_name_has_tests_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checks.py").write_text(SPAWN)
    monkeypatch.chdir(tmp_path)
    assert [one.test.name for one in routes(Suite.read([Path("checks.py")]))] == ["test_it"]
    assert not list(routes(Suite.read([Path()])))
