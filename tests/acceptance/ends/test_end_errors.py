"""What raises or hangs at a rank's end is shown in a line, and keeps nothing else from its end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.suite import Finished, Suite, flat

SHM = Path("/dev/shm")
TRACKER_LIMIT = 60.0
"""Seconds that a tracker may outlive the session, on a loaded machine."""
ENDS = """
    import atexit
    import multiprocessing
    import os
    import sys
    import threading
    import time
    from pathlib import Path

    import pytest
    import torch
    import torch.distributed as dist

    # Each test ends the ranks of the one before it.
    pytestmark = pytest.mark.ddp(world_size=2, isolate=True)

    REGISTERS = {"atexit": atexit.register, "threads": threading._register_atexit}

    def note(name):
        Path(f"{name}.{os.environ['RANK']}").touch()

    @pytest.fixture(autouse=True)
    def around(request):
        name = request.node.name.removeprefix("test_")
        for kind, register in REGISTERS.items():
            register(note, f"before_{name}_{kind}")
        yield
        for kind, register in REGISTERS.items():
            register(note, f"after_{name}_{kind}")

    def hanging():
        time.sleep(600)  # here it hangs

    def broken():
        raise ValueError("cannot clean up\\nat all")

    class Child(multiprocessing.get_context("fork").Process):
        def run(self):
            time.sleep(600)

    class CannotBeJoined(Child):
        def join(self, timeout=None):
            raise TypeError("not to be joined")

    class CannotBeKilled(Child):
        def kill(self):
            raise TypeError("not to be killed")

        def is_alive(self):
            raise TypeError("not to be looked at")

    def test_thread_handler_raises():
        threading._register_atexit(broken)

    def test_thread_handler_exits():
        threading._register_atexit(sys.exit, 3)

    def test_thread_handler_hangs(ddp):
        if ddp.rank == 1:
            threading._register_atexit(hanging)

    def test_cannot_be_joined():
        CannotBeJoined().start()

    def test_cannot_be_killed():
        CannotBeKilled().start()

    def test_unconfigures(request):
        request.config.add_cleanup(broken)

    def test_last():
        dist.all_reduce(torch.ones(1))
"""
SHOWN = {
    "thread_handler_raises": "ValueError: cannot clean up, in broken",
    "thread_handler_exits": "SystemExit: 3",
    "cannot_be_joined": "TypeError: not to be joined, in join",
}
LOKY = """
    import numpy as np
    import pytest
    from joblib import Parallel, delayed

    pytestmark = pytest.mark.ddp(world_size=2)

    def test_small(ddp):
        assert Parallel(n_jobs=2)(delayed(abs)(i) for i in (-1, -2)) == [1, 2]

    def test_arrays(ddp):
        array = np.ones((600, 600))
        assert Parallel(n_jobs=2)(delayed(np.sum)(array) for _ in range(4)) == [360_000] * 4

    def test_next(ddp):
        ddp.barrier()
"""


@pytest.fixture(scope="module")
def ends(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_ends.py", ENDS)
    return suite.run(timeout=120)


@pytest.fixture(scope="module")
def shown(ends: Finished) -> list[str]:
    """The sections at the end of the run."""
    output = ends.stdout.partition("short test summary info")[0]
    return [flat(text) for text in output.split("ddp: error outside of the tests")[1:]]


def test_no_test_fails_of_it(ends: Finished) -> None:
    ends.assert_outcomes(passed=len(re.findall(r"def test_", ENDS)))


@pytest.mark.parametrize("name", SHOWN)
def test_it_is_a_warning_of_one_line(ends: Finished, name: str) -> None:
    lines = {text for text in ends.warnings if SHOWN[name] in text}
    assert lines == {f"raised at the end of the rank: {SHOWN[name]}"}


def test_the_warning_names_the_line(ends: Finished) -> None:
    line = line_of(ends, "raise ValueError")
    assert f"test_ends.py:{line}: DdpWarning: raised at the end of the rank: Value" in ends.stdout


def test_what_would_not_end_fails_the_session_and_an_error_of_pytests_own(
    ends: Finished, shown: list[str]
) -> None:
    hanging, unconfigured = sorted(shown, key=lambda text: "ValueError" in text)
    assert "rank 1 A handler of threading._register_atexit would not end with" in hanging
    assert f'test_ends.py", line {line_of(ends, "# here it hangs")}, in hanging' in hanging
    assert "ranks 0-1 Traceback" in unconfigured


def line_of(ends: Finished, text: str) -> int:
    lines = (ends.directory / "test_ends.py").read_text().splitlines()
    return 1 + next(number for number, line in enumerate(lines) if text in line)


def test_nothing_else_is_kept_from_its_end(ends: Finished) -> None:
    found = {path.name for path in ends.directory.glob("*_*.?")}
    wanted = {
        f"{when}_{name}_{kind}.{rank}"
        for when in ("before", "after")
        for name in re.findall(r"def test_(\w+)", ENDS)
        for kind in ("threads", "atexit")
        for rank in (0, 1)
    }
    assert wanted - found == {"before_thread_handler_hangs_threads.1"}


def test_joblib_ends_as_without_ranks(suite: Suite) -> None:
    before = set(SHM.iterdir())
    suite.write("test_loky.py", LOKY)
    finished = suite.run(timeout=120)
    finished.assert_outcomes(passed=3)
    assert "outside of the tests" not in finished.output, finished.tail()
    assert not [text for text in finished.warnings if "end of the rank" in text]
    deadline = time.monotonic() + TRACKER_LIMIT
    while left := [path for path in set(SHM.iterdir()) - before if is_of_joblib(path)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def is_of_joblib(path: Path) -> bool:
    return path.name.startswith(("sem.loky-", "joblib_memmapping_folder_"))
