"""The route by which a test of an existing suite can run on ranks."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from pytest_ddp.extensions.migrate.routes import Found, Route, routes
from pytest_ddp.extensions.migrate.suite import Suite

SPAWN = """
import torch.multiprocessing as mp
def work(rank): ...
def test_it():
    mp.spawn(work, nprocs=2)
"""


def found(folder: Path, **files: str) -> dict[str, Found]:
    """What is found in a suite with these files, by the test's name; ``conftest`` and others need
    no test."""
    for name, text in files.items():
        file = folder / f"{name.replace('__', '/').replace('//init/', '/__init__')}.py"
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
        (
            "import subprocess\ndef test_it(): subprocess.run([f'{BIN}/torchrun', 'train.py'])",
            Route.NONE,
        ),
        (
            "import asyncio\nasync def go(command):\n"
            " await asyncio.create_subprocess_exec(*command)\n"
            "def test_it(): asyncio.run(go(['accelerate', 'launch', 'train.py']))",
            Route.NONE,
        ),
        ("import os\ndef test_it(): os.system('deepspeed --num_gpus 2 train.py')", Route.NONE),
        ("import os\ndef test_it(): os.system('ls accelerated')", Route.PLAIN),
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
        (
            "import torch.distributed as dist\ndef test_it():\n"
            " dist.init_process_group('fake', store=s, rank=0, world_size=4)\n dist.barrier()",
            Route.PLAIN,
        ),
        (
            "from torch.distributed.launcher import LaunchConfig, elastic_launch\n"
            "def test_it(): elastic_launch(LaunchConfig(1, 1, 2), entrypoint=print)()",
            Route.SPAWN,
        ),
        (
            "import torch.distributed.launcher.api as pet\n"
            "def test_it(): pet.launch_agent(c, print, [])",
            Route.SPAWN,
        ),
        (
            "from torch.distributed.launcher import LaunchConfig, elastic_launch\n"
            "def test_it(): elastic_launch(LaunchConfig(1, 1, 2, start_method='fork'), print)()",
            Route.NONE,
        ),
        (
            "import sys\nfrom torch.distributed.launcher import elastic_launch\n"
            "def test_it(): elastic_launch(config, sys.executable)('-u', 'train.py')",
            Route.NONE,
        ),
        (
            "import torch.distributed.run as launcher\ndef test_it(): launcher.main(['train.py'])",
            Route.NONE,
        ),
        (
            "import torch.multiprocessing as mp\nmp = mp.get_context('spawn')\n"
            "def test_it(): mp.Process(target=print).start()",
            Route.SPAWN,
        ),
        (
            "import multiprocessing\nctx = multiprocessing.get_context('forkserver')\n"
            "def test_it(): ctx.Process(target=print).start()",
            Route.NONE,
        ),
        (
            "from concurrent.futures import ProcessPoolExecutor\ndef test_it():\n"
            " with ProcessPoolExecutor(2) as pool: pool.map(print)",
            Route.NONE,
        ),
        (
            "import functools, torch.multiprocessing as mp\n"
            "run = functools.partial(mp.spawn, nprocs=2)\ndef test_it(): run(print)",
            Route.SPAWN,
        ),
        (
            "from lightning.pytorch import Trainer\n"
            "def test_it(): Trainer(strategy='ddp_spawn').fit(model)",
            Route.SPAWN,
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
        ("torch.testing._internal.common_utils.TestCase", Route.PLAIN),
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


EITHER = """
import torch.multiprocessing as mp
def launch(path, method=None, backend="gloo"):
    method = method or ("fork" if backend == "gloo" else "spawn")
    mp.start_processes(print, args=(path,), start_method=method)
"""
FORK = "forks its processes, which costs little and is left alone"
SPAWNS = "calls torch.multiprocessing.start_processes"
SOME = f"{SPAWNS}, with other start methods in some cases"


@pytest.mark.parametrize(
    ("text", "helpers", "reason"),
    [
        ("def test_it(): launch('a', method='spawn')", EITHER, SPAWNS),
        ("def test_it(): launch('a')", EITHER, FORK),
        ("def test_it(): launch('a', 'spawn')", EITHER, SPAWNS),
        ("def test_it(): launch('a', 'fork')", EITHER, FORK),
        ("METHOD = 'spawn'\ndef test_it(): launch('a', METHOD)", EITHER, SPAWNS),
        (
            "import pytest\n@pytest.mark.parametrize('method', ['fork', 'spawn'])\n"
            "def test_it(method): launch('a', method)",
            EITHER,
            SOME,
        ),
        ("def test_it(): launch('a')", EITHER.replace("method=None", "method='spawn'"), SPAWNS),
        ("def test_it(): launch('a')", EITHER.replace("method=None", "method='fork'"), FORK),
        (
            "def test_it(): launch('a')",
            EITHER.replace("method=None", "*, method='spawn'"),
            SPAWNS,
        ),
    ],
)
def test_which_start_method_a_helper_is_given(
    tmp_path: Path, text: str, helpers: str, reason: str
) -> None:
    text = f"from helpers import launch\n{text}"
    (one,) = found(tmp_path, test_it=text, helpers=helpers).values()
    assert one.reason == reason
    assert one.route is (Route.NONE if reason == FORK else Route.SPAWN)


LAUNCHER = """
import torch.multiprocessing as mp
class Base:
    def launch(self, function): self._start(function)
    def _start(self, function): print(function)
    def count(self): ...
class Launcher(Base):
    def __init__(self, method="spawn"): self.method = method
    def __enter__(self): return self
    def __call__(self, function): self.launch(function)
    def _start(self, function): mp.start_processes(function, start_method=self.method)
"""
LAUNCHED = {
    "by an object": "def test_it(): Launcher().launch(print)",
    "by a variable": "def test_it():\n it = Launcher(method='spawn')\n it.launch(print)",
    "in a with statement": "def test_it():\n with Launcher() as it: it.launch(print)",
    "by a call": "def test_it(): Launcher()(print)",
    "by a fixture": "import pytest\n@pytest.fixture\ndef it(): return Launcher()\n"
    "def test_it(it): it.launch(print)",
    "by a set-up": "class TestIt:\n def setup_method(self): self.it = Launcher()\n"
    " def test_it(self): self.it.launch(print)",
    "by a module": "import launchers\ndef test_it(): launchers.Launcher().launch(print)",
}


@pytest.mark.parametrize("how", LAUNCHED)
def test_a_class_of_the_suite_that_launches(tmp_path: Path, how: str) -> None:
    text = f"from launchers import Launcher\n{LAUNCHED[how]}"
    assert route(tmp_path, text, launchers=LAUNCHER) is Route.SPAWN


def test_a_method_that_does_not_is_not_confused_with_it(tmp_path: Path) -> None:
    text = "from launchers import Launcher\ndef test_it(): Launcher().count()"
    assert route(tmp_path, text, launchers=LAUNCHER) is Route.PLAIN


CONFTEST = """
import os, pytest
@pytest.fixture(autouse=True)
def restore():
    before = dict(os.environ)
    yield
    assert {name for name in os.environ if name not in before} <= {"RANK", "WORLD_SIZE"}
"""
GUARDED = {
    "by an if": "def rank():\n if dist.is_initialized(): return dist.get_rank()\n return 0",
    "by an expression": "def rank(): return dist.is_initialized() and dist.get_rank()",
    "by a function": "def has_group(): return dist.is_available() and dist.is_initialized()\n"
    "def rank(): return dist.get_rank() if has_group() else 0",
    "by trying": "def rank():\n try: return dist.get_rank()\n except ValueError: return 0",
    "by torchelastic": "def rank():\n if dist.is_torchelastic_launched(): dist.barrier()",
}
UNGUARDED = {
    "by itself": "def rank(): return dist.get_rank()",
    "with a group of its own": "def rank():\n if not dist.is_initialized():\n"
    "  dist.init_process_group('gloo')\n return dist.get_rank()",
    "which it ends": "def rank():\n dist.barrier()\n"
    " if dist.is_initialized(): dist.destroy_process_group()",
}


@pytest.mark.parametrize("how", [*GUARDED, *UNGUARDED])
def test_a_function_that_also_runs_without_a_group(tmp_path: Path, how: str) -> None:
    seeds = "import torch.distributed as dist\n" + (GUARDED | UNGUARDED)[how]
    text = "from seeds import rank\ndef test_it(): assert rank() == 0"
    expected = Route.PLAIN if how in GUARDED else Route.EVERYWHERE
    assert route(tmp_path, text, seeds=seeds, conftest=CONFTEST) is expected


RANKED = """
import os, pytest, torch.distributed as dist
SIZE = os.environ["WORLD_SIZE"]
{file}
{on_class}
class TestIt:
    {on_test}
    def test_it(self): dist.barrier()
"""


@pytest.mark.parametrize(
    ("file", "on_class", "on_test", "sizes"),
    [
        ("", "", "@pytest.mark.world_size(2)", {2}),
        ("", "@pytest.mark.world_size(4)", "", {4}),
        ("pytestmark = [pytest.mark.gpu, pytest.mark.world_size(2)]", "", "", {2}),
        ("pytestmark = pytest.mark.world_size(2)", "", "@pytest.mark.world_size(4)", {4}),
        ("", "", "@pytest.mark.distributed(world_size=2)", {2}),
        (
            "",
            "",
            "@pytest.mark.parametrize('n', [pytest.param(n, marks=pytest.mark.world_size(2))])",
            {2},
        ),
        ("", "", "@pytest.mark.world_size(SIZE)", set()),
        ("", "", "@pytest.mark.timeout(2)", set()),
    ],
)
def test_world_sizes_in_marks(
    tmp_path: Path, file: str, on_class: str, on_test: str, sizes: set[int]
) -> None:
    text = RANKED.format(file=file, on_class=on_class, on_test=on_test)
    (one,) = found(tmp_path, test_it=text).values()
    assert (one.route, set(one.sizes)) == (Route.EVERYWHERE, sizes)


SUM = """
import torch.distributed as dist
def work():
    dist.all_reduce(t)
"""
UNKNOWN = {
    "a library's launcher": (
        SUM + "from other.testing import run_distributed\ndef test_it(): run_distributed(work)",
        "calls other.testing.run_distributed, which was not read",
    ),
    "one whose function makes the group": (
        SUM.replace("all_reduce(t)", "init_process_group('gloo')")
        + "import ignite.distributed as idist\ndef test_it(): idist.spawn('gloo', work)",
        "calls ignite.distributed.spawn, which was not read",
    ),
    "a decorator": (
        "import torch\nfrom accelerate.testing import multi_process\n"
        "@multi_process\ndef test_it(): ...",
        "calls accelerate.testing.multi_process, which was not read",
    ),
    "a base class": (
        "import torch\nfrom other import DistributedTestCase\n"
        "class TestIt(DistributedTestCase):\n def test_it(self): ...",
        "derives from other.DistributedTestCase, which was not read",
    ),
    "a fixture of a plugin": (
        SUM + "def test_it(workers): workers(work)",
        "calls torch.distributed.all_reduce, and what starts its ranks was not found",
    ),
    "a test that skips outside of ranks": (
        "import pytest, torch.distributed as dist\ndef test_it():\n"
        " if not dist.is_initialized(): pytest.skip('no ranks')\n dist.barrier()",
        "calls torch.distributed.barrier, and what starts its ranks was not found",
    ),
    "a strategy that starts programs": (
        "from lightning.pytorch import Trainer\ndef test_it(): Trainer(strategy='ddp').fit(model)",
        "names Lightning's strategy ddp",
    ),
    "one of several strategies": (
        "import pytest\nfrom lightning.pytorch import Trainer\n"
        "@pytest.mark.parametrize('strategy', ['ddp_spawn', 'ddp'])\n"
        "def test_it(strategy): Trainer(strategy=strategy).fit(model)",
        "names Lightning's strategy ddp",
    ),
    "a class that torch does not have": (
        "from torch.testing._internal.nowhere import Gone\n"
        "class TestIt(Gone):\n def test_it(self): ...",
        "the import of Gone raised ModuleNotFoundError: No module named [...]",
    ),
}


@pytest.mark.parametrize(
    "context",
    ["ctx = mp.get_context('forkserver')", "name = 'forkserver'; ctx = mp.get_context(name)"],
)
def test_forkserver_is_named(tmp_path: Path, context: str) -> None:
    text = f"import multiprocessing as mp\ndef test_it():\n {context}\n ctx.Process()"
    (one,) = found(tmp_path, test_it=text).values()
    assert one.reason == "starts its processes by forkserver, which is left alone"


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_cannot_be_known_has_a_reason(tmp_path: Path, what: str) -> None:
    text, reason = UNKNOWN[what]
    (one,) = found(tmp_path, test_it=text).values()
    assert (one.route, one.reason) == (Route.UNKNOWN, reason)


@pytest.mark.parametrize(
    "text",
    [
        # A library's function that reduces where there are ranks.
        "import torch.distributed as dist\ndef mean(t):\n if dist.is_initialized():\n"
        "  dist.all_reduce(t)\n return t\ndef test_it(): mean(t)",
        "import torch, pexpect\ndef test_it(): pexpect.spawn('prog')",
        "from browser import launch\ndef test_it(): launch()",
        "import torch\ndef launch(): ...\ndef test_it(): launch()",
        "import torch\ndef test_it():\n def spawn(): ...\n spawn()",
        "from torch.testing._internal.distributed.multi_threaded_pg import spawn_threads\n"
        "def test_it(): spawn_threads()",
        "from torch.nn.parallel import DistributedDataParallel\n"
        "def test_it(): assert not isinstance(model, DistributedDataParallel)",
        "import pytest\n@pytest.mark.parametrize('strategy', ['ddp'])\ndef test_it(strategy): ...",
        "def test_it():\n 'As by torchrun.'",
        "def test_it(): eat('fork')",
    ],
)
def test_what_is_about_something_else_is_plain(tmp_path: Path, text: str) -> None:
    assert route(tmp_path, text) is Route.PLAIN


@pytest.mark.parametrize("error", ["KeyError('BACKEND')", "SystemExit(0)", "GeneratorExit()"])
def test_an_import_of_torch_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    import torch.testing._internal.distributed as package

    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "failing.py").write_text(f"raise {error}")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path / "lib")])
    text = """
    from torch.testing._internal.distributed.failing import Base
    class TestIt(Base):
        def test_it(self): ...
    """
    spawning = SPAWN.replace("test_it", "test_other")
    (tmp_path / "suite").mkdir()
    way = found(tmp_path / "suite", test_it=dedent(text), test_other=spawning)
    assert way["TestIt::test_it"].route is Route.UNKNOWN
    assert f"the import of Base raised {error.partition('(')[0]}" in way["TestIt::test_it"].reason
    assert way["test_other"].route is Route.SPAWN


def test_a_base_that_cannot_be_imported_and_a_method_that_spawns(tmp_path: Path) -> None:
    text = (
        "import torch.multiprocessing as mp\nfrom torch.testing._internal.nowhere import Gone\n"
        "class TestIt(Gone):\n def test_it(self): mp.spawn(print)"
    )
    assert route(tmp_path, text) is Route.SPAWN


LAUNCH = SPAWN.replace("test_it()", "launch(n)")
TESTING = "pkg__testing__distributed"
REEXPORTED = {
    "by a package": {
        "tests__test_it": "from pkg.testing import launch\ndef test_it(): launch(2)",
        "pkg__testing____init__": "from .distributed import launch",
        TESTING: LAUNCH,
    },
    "with all its names, under another": {
        "tests__test_it": "import pkg.testing as t\ndef test_it(): t.run(2)",
        "pkg__testing____init__": "from .more import *",
        "pkg__testing__more": "from pkg.testing.distributed import launch as run",
        TESTING: LAUNCH,
    },
    "by an assignment": {
        "tests__test_it": "from pkg.testing import run\ndef test_it(): run()",
        "pkg__testing____init__": "from functools import partial\nfrom . import distributed\n"
        "run = partial(distributed.launch, 2)",
        TESTING: LAUNCH,
    },
    "a module": {
        "tests__test_it": "from pkg import testing\ndef test_it(): testing.distributed.launch(2)",
        "pkg____init__": "from . import testing",
        "pkg__testing____init__": "from . import distributed",
        TESTING: LAUNCH,
    },
    "by the package of the test": {
        "tests__test_it": "from . import launch\ndef test_it(): launch(2)",
        "tests____init__": "from .helpers import launch",
        "tests__helpers": LAUNCH,
    },
    "a base class": {
        "tests__test_it": "from pkg.testing import Base\nclass TestIt(Base):\n"
        " def test_it(self): self.launch()",
        "pkg__testing____init__": "from .distributed import *",
        TESTING: "import torch.multiprocessing as mp\nclass Base:\n"
        " def launch(self): mp.spawn(print)",
    },
    "a library below src": {
        "tests__test_it": "from pkg.testing import launch\ndef test_it(): launch(2)",
        "src__pkg__testing____init__": "from .distributed import launch",
        "src__pkg__testing__distributed": LAUNCH,
    },
    "what the helpers import": {
        "tests__test_it": "from tests.common import *\ndef test_it(): mp.spawn(print)",
        "tests__common": "import torch.multiprocessing as mp",
    },
}


@pytest.mark.parametrize("how", REEXPORTED)
def test_a_helper_that_a_package_has_from_elsewhere(tmp_path: Path, how: str) -> None:
    files = REEXPORTED[how]
    # Only the tests are named: the rest is found by imports.
    found(tmp_path, **files)
    (one,) = routes(Suite.read([tmp_path / "tests"]))
    assert one.route is Route.SPAWN


def test_names_that_lead_in_circles_end(tmp_path: Path) -> None:
    files = {
        "test_it": "from a import x\nfrom b import *\ndef test_it(): x(); y(); x.z()",
        "a____init__": "from .x import x\nfrom b import *",
        "a__x": "from a import x",
        "b": "from a import *\nfrom b import y\ny = x = y",
    }
    (one,) = found(tmp_path, **files).values()
    assert one.route is Route.PLAIN


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


def test_a_file_that_is_no_python_is_reported(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(:")
    suite = Suite.read([tmp_path])
    assert list(suite.broken) == [tmp_path / "test_it.py"]


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").symlink_to(tmp_path / "gone.py")
    (tmp_path / "test_other.py").write_text(SPAWN)
    suite = Suite.read([tmp_path])
    assert list(suite.broken) == [tmp_path / "test_it.py"]
    assert [one.route for one in routes(suite)] == [Route.SPAWN]


def test_a_file_of_another_name_has_tests_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checks.py").write_text(SPAWN)
    monkeypatch.chdir(tmp_path)
    assert [one.test.name for one in routes(Suite.read([Path("checks.py")]))] == ["test_it"]
    assert not list(routes(Suite.read([Path()])))
