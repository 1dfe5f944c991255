"""GPUs that do not come free: the wait has a bound, and its error names who holds them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_ddp.launch import gpus
from pytest_ddp.launch.gpus import Gpu, LeaseError, LockFolder, lease

SHORT = 0.2


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "physical_gpus", lambda: (Gpu("GPU-0f"), Gpu("GPU-1f")))


def test_the_refusal_names_those_who_hold_gpus(tmp_path: Path) -> None:
    with lease(1, tmp_path, holder="test_a.py::test_first"):
        started = time.monotonic()
        with pytest.raises(LeaseError) as refusal, lease(2, tmp_path, limit=SHORT):
            pass
    assert time.monotonic() - started >= SHORT
    assert str(refusal.value).splitlines() == [
        "2 GPUs did not come free within 0 s: tests of other pytest processes use them",
        f"  GPU-0f is held by process {os.getpid()} (test_a.py::test_first)",
        "  Start fewer xdist workers (-n), or give the test a longer timeout.",
    ]


def test_a_refused_lease_holds_nothing(tmp_path: Path) -> None:
    with lease(1, tmp_path) as first:
        with pytest.raises(LeaseError), lease(2, tmp_path, limit=SHORT):
            pass
        with lease(1, tmp_path, limit=SHORT) as second:
            assert sorted(first + second) == [0, 1]


def test_whoever_is_before_in_the_queue_is_named(tmp_path: Path) -> None:
    note = tmp_path / "queue.holder"
    with contextlib.ExitStack() as held:
        assert LockFolder(tmp_path, "", held).take("queue")
        note.write_text("process 7 (test_b.py::test_all)")
        with pytest.raises(LeaseError, match=r"process 7 \(test_b.py::test_all\) waits for GPUs"):
            lease(1, tmp_path, limit=SHORT).__enter__()


def test_free_gpus_are_had_without_any_patience(tmp_path: Path) -> None:
    with lease(2, tmp_path, limit=0.0) as both:
        assert both == (0, 1)


def test_notes_go_with_their_lease(tmp_path: Path) -> None:
    with lease(2, tmp_path, holder="somebody"):
        assert {path.name for path in tmp_path.glob("*.holder")} == {
            "GPU-0f.holder",
            "GPU-1f.holder",
        }
    assert not list(tmp_path.glob("*.holder"))


# ----------------------------------------------------------------------- shares


def test_ranks_that_share_fill_one_gpu_before_the_next(tmp_path: Path) -> None:
    with lease(3, tmp_path, ranks_per_gpu=2) as ranks:
        assert ranks == (0, 0, 1)
        with lease(1, tmp_path, ranks_per_gpu=2, limit=SHORT) as rest:
            assert rest == (1,)


def test_a_whole_gpu_excludes_shares_and_a_share_the_whole(tmp_path: Path) -> None:
    with lease(1, tmp_path, ranks_per_gpu=4):
        with lease(1, tmp_path, limit=SHORT) as whole:
            assert whole == (1,)
            with lease(3, tmp_path, ranks_per_gpu=4, limit=SHORT) as shares:
                assert shares == (0, 0, 0)
        with pytest.raises(LeaseError), lease(2, tmp_path, limit=SHORT):
            pass
    with lease(2, tmp_path, limit=SHORT) as both:
        assert both == (0, 1)


def test_unlike_shares_never_overlap(tmp_path: Path) -> None:
    with lease(1, tmp_path, ranks_per_gpu=2):  # the first half of the first GPU
        with lease(3, tmp_path, ranks_per_gpu=3, limit=SHORT) as thirds:
            assert thirds == (0, 1, 1)  # its last third, as the second reaches into the half
        with pytest.raises(LeaseError), lease(5, tmp_path, ranks_per_gpu=3, limit=SHORT):
            pass


def test_the_refusal_names_shares_and_what_they_are_of(tmp_path: Path) -> None:
    me = f"process {os.getpid()}"
    with lease(3, tmp_path, ranks_per_gpu=2, holder="test_a.py::test_first"):
        tmp_path.joinpath("GPU-1f.holder").write_text("process 7, which was killed")
        with pytest.raises(LeaseError) as refusal, lease(2, tmp_path, ranks_per_gpu=2, limit=SHORT):
            pass
    assert str(refusal.value).splitlines()[:4] == [
        "2 shares of 1/2 of GPUs did not come free within 0 s: tests of other pytest processes "
        "use them",
        f"  GPU-0f, share 1 of 2, is held by {me} (test_a.py::test_first)",
        f"  GPU-0f, share 2 of 2, is held by {me} (test_a.py::test_first)",
        f"  GPU-1f, share 1 of 2, is held by {me} (test_a.py::test_first)",
    ]


def test_more_shares_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="3 GPUs are needed, 2 are visible"):
        lease(5, tmp_path, ranks_per_gpu=2).__enter__()


def test_shares_end_with_a_killed_process(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pytest_ddp.launch import gpus\n"
        "gpus.physical_gpus = lambda: (gpus.Gpu('GPU-0f'),)\n"
        "with gpus.lease(1, Path(sys.argv[1]), ranks_per_gpu=2) as ranks:\n"
        "    print(*ranks, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        with lease(3, tmp_path, ranks_per_gpu=2, limit=SHORT) as rest:
            assert rest == (0, 1, 1)
        process.kill()
    with lease(2, tmp_path, limit=SHORT) as both:
        assert both == (0, 1)
