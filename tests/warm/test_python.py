"""What stands in for ``python`` is distinguished from it by what it has imported alone."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.extensions.machines.cluster import Cluster, problem, wait_for
from tests.warm.python import standing_in

TELL = """
import os, socket, sys
print(socket.gethostname(), sorted(os.listdir("/sys/class/net")), os.listdir("."), sys.argv)
print(sys.stdin.read(), os.environ["WORD"], "torch" in sys.modules, flush=True)
sys.exit(3)
"""


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.skipif(bool(problem()), reason=problem())
def test_it_is_where_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    monkeypatch.delenv("DDP_TESTS_FRESH", raising=False)
    if fresh:
        monkeypatch.setenv("DDP_TESTS_FRESH", "1")
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted" / "file").touch()
    (tmp_path / "there").mkdir()
    mount = f"mount --bind {tmp_path}/mounted {tmp_path}/there && cd {tmp_path}/there && "
    with Cluster.up() as cluster, standing_in() as python:
        done = subprocess.run(
            [*cluster.on(1, mount), str(python), "-c", TELL, "-n", "two"],
            env=os.environ | {"WORD": "given"},
            input="request",
            capture_output=True,
            text=True,
            check=False,
        )
    where = "beta ['lo', 'veth0'] ['file'] ['-c', '-n', 'two']"
    assert done.stdout == f"{where}\nrequest given {not fresh}\n", done.stderr
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("code", "returncode"),
    [
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("raise SystemExit('so long')", 1),
    ],
)
def test_it_ends_as_what_it_has_started(code: str, returncode: int) -> None:
    with standing_in() as python:
        done = subprocess.run([str(python), "-c", code], check=False, capture_output=True)
    assert done.returncode == returncode


def test_what_it_has_started_is_killed_with_it(tmp_path: Path) -> None:
    code = (
        "import os, signal; open('new', 'w').write(str(os.getpid())); "
        "os.rename('new', 'pid'); signal.pause()"
    )
    with standing_in() as python:
        process = subprocess.Popen([str(python), "-c", code], cwd=tmp_path)
        wait_for(tmp_path / "pid")
        process.kill()
        process.wait()
    # The block has waited for its end.
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()
