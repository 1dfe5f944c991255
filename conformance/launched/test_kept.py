"""Processes with a hash seed of their own: their parents, and how they end."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ddp_conformance.launched.order import Named
from ddp_conformance.launched.process import kept
from ddp_conformance.launched.start.kept_servers import Server, in_process_of

from pytest_ddp import Ddp
from pytest_ddp.system import processes


def orders() -> tuple[list[str], list[int]]:
    return list({f"shard-{index}" for index in range(16)}), list(set(range(16)))


def place() -> tuple[str, str | None]:
    return os.getcwd(), os.environ.get("KEPT")


def slow_imports() -> list[str]:
    slow = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "sympy")
    return [name for name in slow if name in sys.modules]


def server_of() -> int:
    """The server that this process is a fork of."""
    return kept.forked_by


def die() -> None:
    os._exit(3)


@pytest.mark.ddp(world_size=2)
def test_only_the_order_of_strings_differs(ddp: Ddp) -> None:
    if ddp.rank == 0:
        for seed in (0, 1):
            Server(seed).start()
    ddp.gather(None)
    first, again, other = (in_process_of(seed, orders) for seed in (0, 0, 1))
    assert first == again
    assert first[0] != other[0]
    assert first[1] == other[1]
    assert ddp.gather(first) == [first] * 2
    assert os.getpid() != in_process_of(0, server_of) == in_process_of(0, server_of)
    assert not [child for child in processes.children() if "kept" in child.command]


@pytest.mark.ddp(world_size=1)
def test_all_checks_are_imported_without_what_few_ranks_use() -> None:
    """The imports take 1.2 s of CPU, which each fresh process of a check would need before its
    work."""
    assert in_process_of(0, slow_imports) == []


def faults_of_forks(server: int) -> int:
    """Page faults of its forks that have ended: the 11th field of proc(5)."""
    return int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[8])


@pytest.mark.ddp(world_size=1)
def test_a_server_that_is_there_already_forks_nothing() -> None:
    server = in_process_of(0, server_of)
    while not (few := faults_of_forks(server)):
        in_process_of(0, server_of)
    for _ in range(50):
        Server(0).start()
    in_process_of(0, server_of)  # served after those before
    assert faults_of_forks(server) < 10 * few


@pytest.mark.ddp(world_size=1)
def test_a_process_is_where_the_rank_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEPT", "yes")
    assert in_process_of(0, place) == (str(tmp_path), "yes")


@pytest.mark.ddp(world_size=1)
def test_what_ends_badly_is_reported_and_ends_no_server() -> None:
    server = in_process_of(0, server_of)
    with pytest.raises(RuntimeError, match=r"raised: ValueError: invalid literal"):
        in_process_of(0, functools.partial(int, "none"))
    with pytest.raises(RuntimeError, match="died"):
        in_process_of(0, die)
    assert in_process_of(0, server_of) == server


@pytest.mark.ddp(world_size=1)
@pytest.mark.parametrize(
    ("function", "code"),
    [
        (os.getpid, 0),
        (die, 3),
        (functools.partial(int, "none"), 1),
        (signal.pause, -signal.SIGTERM),
    ],
)
def test_the_exit_code_is_reported(function: Callable[[], object], code: int) -> None:
    with contextlib.closing(Server(0).process(answers=False, seconds=0)) as process:
        process.run(function)
        if code < 0:
            process.join(0)
            assert process.exitcode is None
            os.kill(process.pid, -code)
        process.join()
        assert process.exitcode == code


EXITS = "import atexit, os, sys, threading\n"
HOOK = f"{EXITS}def hook(*raised): {{}}\nsys.excepthook = hook\n1 / 0"


@pytest.mark.ddp(world_size=1)
@pytest.mark.parametrize(
    "program",
    [
        f"{EXITS}sys.exit()",
        f"{EXITS}sys.exit(259)",
        f"{EXITS}sys.exit('no such file')",
        HOOK.format("print(raised)"),
        HOOK.format("os._exit(0)"),
        HOOK.format("sys.exit(0)"),
        HOOK.format("raise OSError"),
        f"{EXITS}atexit.register(os._exit, 0)\n1 / 0",
        f"{EXITS}atexit.register(sys.exit, 5)",
        f"{EXITS}threading.Timer(0.1, os._exit, [4]).start()",
        f"{EXITS}threading.Thread(target=sys.exit, args=[4]).start()",
    ],
)
def test_a_process_has_the_exit_code_of_an_interpreter(program: str) -> None:
    right = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    with contextlib.closing(Server(0).process(answers=False, seconds=0)) as process:
        process.run(functools.partial(exec, program, {}))
        process.join()
        assert process.exitcode == right.returncode


@pytest.mark.ddp(world_size=1)
def test_all_processes_have_one_parent(tmp_path: Path) -> None:
    """Ranks under torchrun have one parent, too: files may be named by its number."""
    kept_there = [imported(tmp_path, "a")]
    parents = [
        in_process_of(0, os.getppid),
        in_process_of(1, os.getppid),
        *(in_process_of(0, os.getppid, kept_there) for _ in range(2)),
    ]
    with contextlib.closing(Server(1, launches=True).process()) as process:
        process.run(os.getppid)
        parents.append(process.answer())
    assert len(set(parents)) == 1
    os.kill(parents[0], signal.SIGKILL)
    wait_for(parents[0])
    assert in_process_of(0, os.getppid) == in_process_of(1, os.getppid) != parents[0]


@pytest.mark.ddp(world_size=1)
@pytest.mark.parametrize("runs", [False, True])
def test_a_process_ends_with_its_caller(*, runs: bool) -> None:
    process = Server(0).process(answers=False, seconds=0)
    number = process.pid
    if runs:
        process.run(signal.pause)
    process.close()  # as the kernel does when a rank is killed
    wait_for(number)


@pytest.mark.ddp(world_size=1)
def test_servers_of_launched_ranks_are_their_own_and_have_other_imports() -> None:
    servers = [Server(0), Server(0, launches=True), Server(1, launches=True)]
    with contextlib.ExitStack() as stack:
        processes = [server.process() for server in servers]
        for process in processes:
            stack.callback(process.close)
            process.run(known)
        parents, imported, seeds = zip(*(process.answer() for process in processes), strict=True)
    assert len(set(parents)) == 3
    assert imported == (False, True, True)
    assert seeds[0] == seeds[1] != seeds[2]


def known() -> tuple[int, bool, int]:
    """The server, whether it has imported FSDP, and what follows from the hash seed."""
    return kept.forked_by, "torch.distributed.fsdp" in sys.modules, hash("shard")


def wait_for(process: int) -> None:
    """Wait until a process has ended, whether or not its parent knows."""
    with contextlib.suppress(ProcessLookupError):
        end = os.pidfd_open(process)
        select.select([end], [], [])
        os.close(end)


def die_before_a_child(number: Path) -> None:
    if (child := os.fork()) == 0:
        signal.pause()  # until it is killed
    number.write_text(str(child))
    os._exit(3)


@pytest.mark.ddp(world_size=1)
def test_a_server_that_is_gone_is_started_again() -> None:
    server = in_process_of(7, server_of)
    os.kill(server, signal.SIGKILL)
    wait_for(server)
    assert in_process_of(7, server_of) != server


IMPORTED = """
with open({log!r}, "a") as log:
    log.write({name!r})
{more}
"""


def imported(folder: Path, name: str, more: str = "") -> Named:
    """A module that leaves its name in a file when it is imported."""
    file = folder / f"kept_{name}.py"
    file.write_text(IMPORTED.format(log=str(folder / "imported"), name=name, more=more))
    return Named(file.stem, "__name__", str(file))


def both(*names: Named) -> list[str]:
    return [name.load() for name in names]


@pytest.mark.ddp(world_size=1)
def test_imports_are_kept_until_others_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = imported(tmp_path, "a"), imported(tmp_path, "b")
    for wanted in ([one], [one], [two], [two], [one]):
        got = in_process_of(0, functools.partial(both, *wanted), wanted)
        assert got == [name.module for name in wanted]
    assert (tmp_path / "imported").read_text() == "aba"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEPT", "now")
    assert in_process_of(0, place, [one]) == (str(tmp_path), "now")
    same = Named(one.module, "__file__", one.file)
    assert in_process_of(0, server_of, [one, same]) == in_process_of(0, server_of, [same])
    assert in_process_of(0, server_of, [one]) != in_process_of(1, server_of, [one])
    assert in_process_of(0, functools.partial(both, one, two), [one, two]) == ["kept_a", "kept_b"]
    assert (tmp_path / "imported").read_text() == "abaaab"


@pytest.mark.ddp(world_size=1)
@pytest.mark.parametrize(
    "more",
    [
        "import threading; threading.Timer(60, print).start()",
        "import torch; torch.cuda.is_initialized = lambda: True",
    ],
    ids=["thread", "gpu"],
)
def test_what_no_fork_may_follow_is_imported_each_time(tmp_path: Path, more: str) -> None:
    one = imported(tmp_path, "a", more)
    server = in_process_of(0, server_of)
    for _ in range(3):
        assert in_process_of(0, server_of, [one]) == server
        assert in_process_of(0, functools.partial(both, one), [one]) == ["kept_a"]
    # The first of these six calls needed nothing of it, and yet imported what it was to keep.
    assert (tmp_path / "imported").read_text() == "a" * 4


@pytest.mark.ddp(world_size=1)
def test_imports_that_end_badly_are_reported_each_time(tmp_path: Path) -> None:
    raises = imported(tmp_path, "a", "raise ImportError('no such part')")
    dies = imported(tmp_path, "b", "import os; os._exit(3)")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"raised: ImportError: no such part"):
            in_process_of(0, functools.partial(both, raises), [raises])
        with pytest.raises(RuntimeError, match="died"):
            in_process_of(0, functools.partial(both, dies), [dies])


@pytest.mark.ddp(world_size=1)
@pytest.mark.parametrize("keeps", [False, True], ids=["forgets", "keeps"])
def test_a_child_that_outlives_its_process_is_killed_and_keeps_no_caller(
    tmp_path: Path, keeps: bool
) -> None:
    """DataLoader workers outlive a parent that took too long, and hold the connection."""
    number = tmp_path / "child"
    kept = [imported(tmp_path, "a")] if keeps else []
    for _ in range(2):  # by a server that has begun to keep, and by one that has kept
        with pytest.raises(RuntimeError, match="died"):
            in_process_of(0, functools.partial(die_before_a_child, number), kept)
        wait_for(int(number.read_text()))
