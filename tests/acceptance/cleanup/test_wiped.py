"""A test that clears the temporary directory takes nothing from the ranks: all that plain pytest
passes after it passes with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import SPAWNED, Finished, Suite

SPAWN = ("--ddp-start-method=spawn",) if SPAWNED else ()

PRELUDE = """
    import os
    import shutil
    import signal
    import tempfile
    from pathlib import Path

    import pytest
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    def wipe():
        # What was asked for is what is cleared, whatever pytest keeps there.
        assert tempfile.gettempdir() == os.environ["TMPDIR"]
        for entry in Path(tempfile.gettempdir()).iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def work(ddp):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == ddp.world_size
        assert len(list(DataLoader(torch.arange(4), num_workers=1))) == 4
        group = dist.new_group(list(range(ddp.world_size)))
        dist.all_reduce(total, group=group)
        dist.destroy_process_group(group)
"""

CONTENTS = (
    PRELUDE
    + """
    @pytest.mark.ddp(world_size=2)
    def test_wipes(ddp):
        work(ddp)
        ddp.barrier()
        if ddp.rank == 0:
            wipe()
        ddp.barrier()
        work(ddp)

    @pytest.mark.ddp(world_size=2)
    def test_after_on_the_same_ranks(ddp):
        work(ddp)

    @pytest.mark.ddp(world_size=2)
    def test_destroys_its_group(ddp):
        dist.destroy_process_group()

    @pytest.mark.ddp(world_size=2)
    def test_in_a_new_group(ddp):
        work(ddp)

    @pytest.mark.ddp(world_size=3)
    def test_on_new_ranks(ddp):
        work(ddp)

    def test_wipes_without_ranks():
        wipe()

    @pytest.mark.ddp(world_size=2, init=False)
    def test_own_group(ddp):
        dist.init_process_group()
        work(ddp)

    @pytest.mark.ddp(world_size=2)
    def test_dies(ddp):
        if ddp.rank == 1:
            with ddp.phase("the end"):
                os.kill(os.getpid(), signal.SIGSEGV)
        dist.barrier()

    @pytest.mark.ddp(world_size=2)
    def test_kills_the_host(ddp):
        if ddp.rank == 0:
            wipe()
            os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()

    @pytest.mark.ddp(world_size=2)
    def test_on_a_new_host(ddp):
        work(ddp)

    @pytest.mark.ddp(world_size=2)
    def test_wants_a_directory(ddp, tmp_path):
        pass

    @pytest.mark.ddp(world_size=2)
    def test_last(ddp):
        work(ddp)
"""
)

DIRECTORY = (
    PRELUDE
    + """
    @pytest.mark.ddp(world_size=2)
    def test_removes_the_directory(ddp):
        if ddp.rank == 0:
            shutil.rmtree(os.environ["TMPDIR"])
        ddp.barrier()
        dist.barrier()

    @pytest.mark.ddp(world_size=2, isolate=True)
    def test_on_new_ranks(ddp):
        work(ddp)

    @pytest.mark.ddp(world_size=2)
    def test_kills_the_host(ddp):
        if ddp.rank == 0:
            os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()

    @pytest.mark.ddp(world_size=2)
    def test_on_a_new_host(ddp):
        work(ddp)
"""
)

KILLED = {"test_dies", "test_kills_the_host"}


def run(suite: Suite, source: str) -> Finished:
    suite.write("test_it.py", source)
    temporary = suite.directory.with_name(f"{suite.directory.name}-tmp")
    temporary.mkdir()
    env = {"TMPDIR": str(temporary), "PYTEST_DEBUG_TEMPROOT": None}
    return suite.run(env=env, extra=SPAWN)


@pytest.fixture(scope="module")
def contents(new_suite: Callable[[], Suite]) -> Finished:
    return run(new_suite(), CONTENTS)


@pytest.fixture(scope="module")
def directory(new_suite: Callable[[], Suite]) -> Finished:
    return run(new_suite(), DIRECTORY)


def test_the_other_tests_pass(contents: Finished) -> None:
    verdicts = {nodeid.partition("::")[2]: r.verdict for nodeid, r in contents.results.items()}
    assert {name for name, verdict in verdicts.items() if verdict != "passed"} == KILLED
    assert len(verdicts) == 12


def test_the_other_tests_pass_without_the_directory(directory: Finished) -> None:
    verdicts = {nodeid.partition("::")[2]: r.verdict for nodeid, r in directory.results.items()}
    assert {name for name, verdict in verdicts.items() if verdict != "passed"} == {
        "test_kills_the_host"
    }
    assert len(verdicts) == 4


def test_a_death_after_it_is_located(contents: Finished) -> None:
    text = contents["test_dies"].text
    assert "SIGSEGV" in text
    assert "the end" in text
    source = (contents.directory / "test_it.py").read_text().splitlines()
    line = 1 + next(n for n, text in enumerate(source) if "SIGSEGV" in text)
    assert f"test_it.py:{line}" in text
