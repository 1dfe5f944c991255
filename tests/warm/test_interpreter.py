"""A warm interpreter is distinguished from a fresh one by what it has imported alone."""

from __future__ import annotations

import ast
import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.extensions.machines.cluster import Cluster, problem
from tests.acceptance.suite import Suite
from tests.warm import interpreter

TELL = """
import json, os, sys
os.umask(umask := os.umask(0))
seen = {
    "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "umask": umask,
    "env": dict(os.environ), "stdin": sys.stdin.read(), "name": __name__,
    "leads": os.getsid(0) == os.getpid(),
    "prefix": sys.prefix,
}
json.dump(seen, sys.stdout)
print("a word", file=sys.stderr)
"""
WAITS = "import threading; print('up', flush=True); threading.Event().wait()"


@pytest.fixture(autouse=True)
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDP_TESTS_FRESH", raising=False)


def run(directory: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return interpreter.run(arguments, cwd=directory, env=os.environ | env, timeout=60)


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"TORCHINDUCTOR_CACHE_DIR": "set by an import of torch"},
        {"TORCHELASTIC_USE_AGENT_STORE": "True"},
    ],
)
def test_it_has_torch(tmp_path: Path, env: dict[str, str]) -> None:
    done = run(tmp_path, "-c", "import sys; print('torch' in sys.modules)", **env)
    assert done.stdout == "True\n", done.stderr


def test_sessions_of_suites_have_it_too(tmp_path: Path) -> None:
    """What the machine sets for its libraries, such as OPENBLAS_CORETYPE: else each takes 5 s."""
    suite = Suite(tmp_path)
    suite.write("test_it.py", "import sys\n\ndef test_it():\n    assert 'torch' in sys.modules\n")
    suite.run().assert_outcomes(passed=1)


@pytest.mark.parametrize("arguments", [["-c", TELL], ["-m", "tell"]], ids=["code", "module"])
def test_a_program_finds_what_it_would_in_a_fresh_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    (tmp_path / "tell.py").write_text(TELL)
    env = {"PYTHONPATH": f"{tmp_path}/more:relative", "WORD": "ä"}
    given = [*arguments, "one", "-n", "two"]
    warm = run(tmp_path, *given, **env)
    monkeypatch.setenv("DDP_TESTS_FRESH", "1")
    fresh = run(tmp_path, *given, **env)
    seen, expected = json.loads(warm.stdout), json.loads(fresh.stdout)
    del expected["env"]["DDP_TESTS_FRESH"]
    assert seen == expected
    assert (warm.returncode, warm.stderr) == (0, "a word\n")


def test_proc_shows_it_and_what_it_forks_as_fresh_ones(tmp_path: Path) -> None:
    """Survivors of a run are known by its variables, and a coordinator by its command line."""
    program = """
import os
if os.fork() == 0:
    for name in ("cmdline", "environ"):
        with open(f"/proc/self/{name}", "rb") as file:
            print(list(filter(None, file.read().split(b"\\0"))), flush=True)
    os._exit(0)
os.wait()
"""
    done = run(tmp_path, "-c", program, WORD="ä")
    command, variables = map(ast.literal_eval, done.stdout.splitlines())
    assert command == [os.fsencode(word) for word in (sys.executable, "-c", program)], done.stderr
    expected = os.environ | {"WORD": "ä"}
    assert variables == [os.fsencode(f"{name}={value}") for name, value in expected.items()]


@pytest.mark.parametrize(
    ("code", "returncode", "words"),
    [
        ("pass", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('so long')", 1, "so long\n"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os; os._exit(7)", 7, ""),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("import atexit, sys; atexit.register(sys.stderr.write, 'bye')", 0, "bye"),
    ],
)
def test_it_ends_as_a_fresh_one(tmp_path: Path, code: str, returncode: int, words: str) -> None:
    done = run(tmp_path, "-c", code)
    assert done.returncode == returncode
    assert words in done.stderr
    assert bool(done.stderr) == bool(words)


@pytest.mark.parametrize("env", [{"PYTHONHASHSEED": "3"}, {"TORCH_FR_BUFFER_SIZE": "0"}])
def test_what_an_interpreter_reads_at_its_start_makes_it_fresh(
    tmp_path: Path, env: dict[str, str]
) -> None:
    done = run(tmp_path, "-c", "import sys; print('torch' in sys.modules)", **env)
    assert done.stdout == "False\n"


def test_it_begins_with_what_is_there_for_each_start(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.begun_with = 'this'\n")
    code = "import sys; print(sys.begun_with, sys.stdout.write_through, 'torch' in sys.modules)"
    done = run(tmp_path, "-c", code, PYTHONPATH=str(tmp_path), PYTHONUNBUFFERED="1")
    assert done.stdout == "this True True\n", done.stderr


def test_it_is_killed_with_its_group_in_time(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        interpreter.run(["-c", WAITS], cwd=tmp_path, timeout=0.5)


def test_its_random_numbers_are_its_own(tmp_path: Path) -> None:
    code = "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(1))"
    drawn = [run(tmp_path, "-c", code).stdout.split() for _ in range(2)]
    assert all(one != other for one, other in zip(*drawn, strict=True))


def test_signals_reach_it(tmp_path: Path) -> None:
    with open(os.devnull) as nothing, (tmp_path / "out").open("w+") as out:
        process = interpreter.start(
            ["-c", WAITS],
            cwd=tmp_path,
            env=os.environ,
            stdin=nothing.fileno(),
            stdout=out.fileno(),
            stderr=out.fileno(),
        )
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM == process.returncode
        process.kill()  # of no consequence any more


def test_it_starts_hosts_from_its_own_children(tmp_path: Path) -> None:
    code = f"""
import os, subprocess, sys
print(os.getpid(), flush=True)
look = ["-c", "'from pytest_ddp.rank.main import main'; import os, sys; "
    "print(os.getppid(), 'torch' in sys.modules, os.read(int(sys.argv[1]), 9), os.environ['WORD'])"]
for _ in range(2):
    reading, writing = os.pipe()
    os.write(writing, b"passed")
    child = subprocess.Popen(
        [{sys.executable!r}, *subprocess._args_from_interpreter_flags(), *look, str(reading)],
        pass_fds=[reading], env={{"WORD": "given"}}, start_new_session=True,
    )
    assert child.wait() == 0
"""
    done = run(tmp_path, "-c", code)
    pid, warm, fresh = done.stdout.splitlines()
    assert warm == f"{pid} True b'passed' given", done.stderr
    assert fresh == f"{pid} False b'passed' given"


def test_it_starts_spawned_processes_from_its_own_children(tmp_path: Path) -> None:
    suite = Suite(tmp_path)
    suite.write(
        "test_it.py",
        """
        import multiprocessing
        import os
        import sys

        CONTEXT = multiprocessing.get_context("spawn")
        HAD_TORCH = "torch" in sys.modules


        def show(queue):
            parent = multiprocessing.parent_process().pid
            queue.put((os.getppid(), parent, os.getpgid(0), os.environ["WORD"], HAD_TORCH))
            sys.exit(3)


        def test_it(monkeypatch):
            monkeypatch.setenv("WORD", "given")
            for warm in (True, False):
                queue = CONTEXT.SimpleQueue()
                process = CONTEXT.Process(target=show, args=(queue,))
                process.start()
                seen = queue.get()
                process.join()
                assert seen == (os.getpid(), os.getpid(), os.getpgid(0), "given", warm)
                assert process.exitcode == 3
        """,
    )
    suite.run("-p", "no:ddp", spawns=1).assert_outcomes(passed=1)


@pytest.mark.skipif(bool(problem()), reason=problem())
def test_it_is_on_a_machine_as_a_fresh_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import os, socket, sys
print(socket.gethostname(), sorted(os.listdir("/sys/class/net")), os.listdir("."))
print("torch" in sys.modules)
"""
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted" / "file").touch()
    with Cluster.up() as cluster:
        machine = cluster.machine(
            1, f"mount --bind {tmp_path}/mounted {tmp_path} && cd {tmp_path} && "
        )
        run_there = functools.partial(
            interpreter.run, ["-c", code], cwd=tmp_path, timeout=60, machine=machine
        )
        warm = run_there()
        monkeypatch.setenv("DDP_TESTS_FRESH", "1")
        fresh = run_there()
    assert warm.stdout == "beta ['lo', 'veth0'] ['file']\nTrue\n", warm.stderr
    assert fresh.stdout == warm.stdout.replace("True", "False"), fresh.stderr


def test_flags_of_the_interpreter(tmp_path: Path) -> None:
    """Ours are started with ``-B`` where whoever starts us wants no bytecode."""
    program = "import sys; print(sys.dont_write_bytecode, sys.argv)"
    keeping = {"PYTHONDONTWRITEBYTECODE": ""}
    seen = [
        run(tmp_path, *flags, "-c", program, "-B", **env).stdout
        for flags, env in (
            ((), keeping),
            (("-u", "-B"), keeping),
            (("-B",), keeping),
            ((), {"PYTHONDONTWRITEBYTECODE": "1"}),
        )
    ]
    assert seen == [f"{wanted} ['-c', '-B']\n" for wanted in (False, True, True, True)]
