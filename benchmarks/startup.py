"""What the start of ranks costs: ``python -m benchmarks startup``.

Ranks import the user's own code by themselves. That is compared with ``--ddp-import=host``, where
their host does so once before it forks, and with torchrun, where each rank imports everything.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.memory import children, pss

_LIMIT = 600
_MIB = 1 << 20
RANKS = 4


class Candidate(NamedTuple):
    """One way to run the same files."""

    name: str
    arguments: tuple[str, ...] = ()
    """Arguments for pytest."""
    launcher: tuple[str, ...] = (sys.executable,)


_TORCHRUN = (str(Path(sys.executable).parent / "torchrun"), "--standalone")
CANDIDATES = (
    Candidate("pytest-ddp"),
    Candidate("pytest-ddp, `--ddp-import=host`", ("--ddp-import=host",)),
    Candidate("`torchrun -m pytest`", ("-p", "no:ddp"), (*_TORCHRUN, f"--nproc-per-node={RANKS}")),
)
_TEST = """
import os
import pytest
import torch
import torch.distributed as dist
{imports}

pytestmark = pytest.mark.ddp(world_size=int(os.environ["BENCHMARK_WORLD_SIZE"]))

@pytest.fixture(autouse=True)
def _group():
    if not dist.is_initialized():
        dist.init_process_group("gloo")

@pytest.mark.parametrize("number", range({tests}))
def test_all_reduce(number):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == dist.get_world_size()
"""
_ISOLATED = """
import pytest

@pytest.mark.parametrize("number", range({tests}))
@pytest.mark.ddp(world_size=4, isolate=True)
def test_alone(ddp, number):
    ddp.barrier()
"""
_POOLS = """
import os
from pathlib import Path
from typing import NamedTuple
import pytest
import torch
import torch.distributed as dist

@pytest.mark.ddp(world_size={sizes})
def test_all_reduce(ddp):
    dist.all_reduce(torch.ones(1))

def test_memory():
    Path(os.environ["BENCHMARK_READY"]).write_text(str(os.getpid()))
    while not Path(os.environ["BENCHMARK_READ"]).exists():
        pass
"""
SUITES: dict[str, Callable[[], dict[str, str]]] = {
    "one test, torch": lambda: _files(1, 1, ""),
    "one test, torch and lightning": lambda: _files(1, 1, "import lightning"),
    "100 files of 3 tests, torch": lambda: _files(100, 3, ""),
}


def _files(count: int, tests: int, imports: str) -> dict[str, str]:
    text = _TEST.format(tests=tests, imports=imports)
    return {f"test_{number}.py": text for number in range(count)}


def run(candidate: Candidate, files: Mapping[str, str]) -> float:
    """Seconds of one session on these files.

    Raises:
        RuntimeError: it failed; its output is the message.
    """
    with tempfile.TemporaryDirectory() as directory:
        for name, text in files.items():
            Path(directory, name).write_text(text)
        begin = time.perf_counter()
        done = subprocess.run(
            [*candidate.launcher, "-m", "pytest", *_options(directory), *candidate.arguments],
            cwd=directory,
            env=_environment(BENCHMARK_WORLD_SIZE=str(RANKS)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=False,
        )
        seconds = time.perf_counter() - begin
    if done.returncode != 0:
        raise RuntimeError(f"{candidate.name}:\n{done.stdout}\n{done.stderr}")
    return seconds


def _options(directory: str) -> tuple[str, ...]:
    plain = ("-q", "-x", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={directory}")
    # torchrun's ranks have no marker of ours.
    return (*plain, "-W", "ignore")


def _environment(**variables: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "OMP_NUM_THREADS": "1", **variables}


def isolated(candidate: Candidate) -> float:
    """Seconds of one more test that has fresh ranks."""
    few, many = (
        run(candidate, {"test_alone.py": _ISOLATED.format(tests=tests)}) for tests in (2, 22)
    )
    return (many - few) / 20


def memory(sizes: Sequence[int]) -> list[int]:
    """Proportional set sizes of all ranks of a session that has had tests of these sizes, bytes."""
    with tempfile.TemporaryDirectory() as directory:
        ready, read = Path(directory, "ready"), Path(directory, "read")
        Path(directory, "test_pools.py").write_text(_POOLS.format(sizes=list(sizes)))
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", *_options(directory)],
            cwd=directory,
            env=_environment(BENCHMARK_READY=str(ready), BENCHMARK_READ=str(read)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        ) as process:
            while not (ready.exists() and ready.read_text()):
                if process.poll() is not None:
                    raise RuntimeError(f"the session ended with code {process.returncode}")
            found = [pss(rank) for rank in _ranks(int(ready.read_text()))]
            read.touch()
    return found


def _ranks(controller: int) -> Iterator[int]:
    """Grandchildren of pytest that are forks of its host, or of the fork that is its host."""
    for child in children(controller):
        grandchildren = children(child)
        if len(grandchildren) == 1:
            grandchildren = children(grandchildren[0]) or grandchildren
        yield from grandchildren


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print markdown tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks startup", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run of each")
    repeats = 1 if parser.parse_args(arguments).quick else 5
    print(f"| session, {RANKS} ranks | {' | '.join(c.name for c in CANDIDATES)} |")
    print(f"|---{'|--:' * len(CANDIDATES)}|")
    for name, files in SUITES.items():
        runs = [[run(candidate, files()) for candidate in CANDIDATES] for _ in range(repeats)]
        print(_row(name, [statistics.median(column) for column in zip(*runs, strict=True)], "s"))
    alone = [[isolated(candidate) for candidate in CANDIDATES[:2]] for _ in range(repeats)]
    middles = [statistics.median(column) for column in zip(*alone, strict=True)]
    print(f"{_row('one more isolated test', middles, 'ms')} |")
    print()
    print("| memory of idle ranks (proportional set size) | each | all |")
    print("|---|--:|--:|")
    for sizes in ((4,), (1, 2, 4)):
        found = memory(sizes)
        pools = f"pools of {', '.join(map(str, sizes))} ranks".replace("pools of 4", "a pool of 4")
        print(
            f"| {pools} | {sum(found) / len(found) / _MIB:.0f} MiB | {sum(found) / _MIB:.0f} MiB |"
        )


def _row(name: str, seconds: Sequence[float], unit: str) -> str:
    scale, digits = (1e3, 0) if unit == "ms" else (1.0, 2)
    own = seconds[0]
    cells = [f"{own * scale:.{digits}f} {unit}"]
    cells += [f"{s * scale:.{digits}f} {unit}, x {s / own:.2f}" for s in seconds[1:]]
    return f"| {name} | {' | '.join(cells)} |"
