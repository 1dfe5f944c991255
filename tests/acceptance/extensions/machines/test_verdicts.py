"""Two machines of two ranks under torchrun: the verdicts are those of one machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.extensions.machines.cluster import Cluster, Session
from tests.acceptance.suite import Suite, flat

EXAMPLES = """
    import contextlib
    import os
    import signal
    import socket
    import sys
    import time

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=4, timeout=60)


    def of_all(ddp, value):
        return ddp.gather(value)


    def test_sum(ddp):
        total = torch.full((3,), float(ddp.rank))
        dist.all_reduce(total)
        assert total.tolist() == [6.0] * 3


    def test_places(ddp):
        names = "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "RANK"
        found = of_all(ddp, [os.environ[name] for name in names])
        assert found == [
            ["0", "2", "0", "0", "4", "0"],
            ["1", "2", "0", "0", "4", "1"],
            ["0", "2", "1", "1", "4", "2"],
            ["1", "2", "1", "1", "4", "3"],
        ]
        assert of_all(ddp, socket.gethostname()) == ["alpha", "alpha", "beta", "beta"]
        assert "veth0" == os.environ["GLOO_SOCKET_IFNAME"]


    def test_temporary_folders_are_the_machines_own(ddp, tmp_path):
        (tmp_path / f"of-{ddp.rank}").write_text("x")
        ddp.barrier()
        mates = [0, 1] if ddp.rank < 2 else [2, 3]
        assert sorted(os.listdir(tmp_path)) == [f"of-{rank}" for rank in mates]


    @pytest.mark.ddp(init=False)
    def test_own_group(ddp):
        for _ in range(2):
            dist.init_process_group("gloo")
            total = torch.ones(1)
            dist.all_reduce(total)
            dist.destroy_process_group()
            assert total.item() == 4


    def test_subgroups(ddp):
        group, _ = dist.new_subgroups(2)
        total = torch.full((1,), float(ddp.rank))
        dist.all_reduce(total, group=group)
        assert total.item() == (1 if ddp.rank < 2 else 5)


    def test_large_objects_come_whole(ddp):
        own = os.urandom(3_000_000)
        assert of_all(ddp, own)[ddp.rank] == own


    def test_assert(ddp):
        print("printed by", ddp.rank)
        assert ddp.rank != 3


    def test_skip(ddp):
        pytest.skip("on all")


    def test_skip_of_one(ddp):
        if ddp.rank == 2:
            pytest.skip("on one")


    @pytest.mark.xfail(strict=True)
    def test_xfail(ddp):
        assert ddp.rank != 2


    def test_deadlock(ddp):
        if ddp.rank != 2:
            dist.barrier()


    def test_mismatch(ddp):
        dist.all_reduce(torch.ones(1)) if ddp.rank < 2 else dist.broadcast(torch.ones(1), 0)


    def test_collective_too_few(ddp):
        if ddp.rank == 3:
            dist.broadcast(torch.ones(1), 3)


    def test_exit(ddp):
        if ddp.rank == 2:
            os._exit(0)
        dist.barrier()


    def test_crash(ddp):
        if ddp.rank == 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        dist.barrier()


    def test_kill(ddp):
        print("last words of", ddp.rank)
        sys.stdout.flush()
        if ddp.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()


    def test_garbage(ddp):
        # Into the rank's channel, and into the socket of its log.
        if ddp.rank == 3:
            for number in range(3, 256):
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as end:
                    if end.family == socket.AF_UNIX:
                        os.write(number, b"garbage" * 100)
            time.sleep(1000)


    def test_interrupt(ddp):
        if ddp.rank in (0, 3):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)


    @pytest.mark.ddp(timeout=2)
    def test_timeout(ddp):
        if ddp.rank == 3:
            time.sleep(60)


    def test_after_all_that(ddp):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 4


    @pytest.mark.ddp(world_size=2, nodes=1)
    def test_on_one(ddp):
        assert of_all(ddp, socket.gethostname()) == ["alpha", "alpha"]
        assert of_all(ddp, os.environ["LOCAL_WORLD_SIZE"]) == ["2", "2"]


    @pytest.mark.ddp(world_size=2)
    def test_two_are_spread(ddp):
        assert of_all(ddp, socket.gethostname()) == ["alpha", "beta"]


    @pytest.mark.ddp(nodes=3)
    def test_three_machines(ddp):
        pass


    @pytest.mark.ddp(backend="nccl")
    def test_gpus(ddp):
        pass
"""

LIGHTNING = """
    import pytest


    @pytest.mark.ddp(world_size=4, timeout=60)
    def test_lightning_finds_its_nodes(ddp, tmp_path):
        from lightning.pytorch import Trainer
        from lightning.pytorch.demos.boring_classes import BoringModel

        quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
        trainer = Trainer(
            accelerator="cpu",
            devices=2,
            num_nodes=2,
            strategy="ddp",
            max_steps=2,
            default_root_dir=tmp_path,
            **quiet,
        )
        trainer.fit(BoringModel())
        assert trainer.world_size == 4
        assert ddp.gather(trainer.node_rank) == [0, 0, 1, 1]
"""
"""A test of Lightning, for one engine alone: with the others, ranks have the variables that it
reads from the plugin, too, which ``test_places`` sees."""

PLAIN = """
    import os


    def test_in_the_pytest_process():
        assert "RANK" not in os.environ
"""

VERDICTS = {
    "test_sum": "passed",
    "test_places": "passed",
    "test_temporary_folders_are_the_machines_own": "passed",
    "test_own_group": "passed",
    "test_subgroups": "passed",
    "test_large_objects_come_whole": "passed",
    "test_assert": "failed",
    "test_skip": "skipped",
    "test_skip_of_one": "failed",
    "test_xfail": "xfailed",
    "test_deadlock": "failed",
    "test_mismatch": "failed",
    "test_collective_too_few": "failed",
    "test_exit": "failed",
    "test_crash": "failed",
    "test_kill": "failed",
    "test_garbage": "failed",
    "test_interrupt": "failed",
    "test_timeout": "failed",
    "test_after_all_that": "passed",
    "test_on_one": "passed",
    "test_two_are_spread": "passed",
    "test_three_machines": "skipped",
    "test_gpus": "skipped",
    "test_in_the_pytest_process": "passed",
}
ALL = {**VERDICTS, "test_lightning_finds_its_nodes": "passed"}

TEXTS = {
    "test_assert": "rank 3 of 4 failed in call: assert 3 != 3",
    "test_skip_of_one": "ranks disagree",
    "test_deadlock": "deadlock: rank 0 waits in barrier #1 of the default group, rank 2 has ended",
    "test_mismatch": "mismatch: rank 0 waits in all_reduce #1 of the default group, rank 2 in",
    "test_collective_too_few": "broadcast",
    "test_exit": "exit code 0 is no verdict",
    "test_crash": "rank 3 died of SIGSEGV in call, at test_examples.py:",
    "test_kill": "rank 2 died of SIGKILL in call, begun at test_examples.py:",
    "test_garbage": "rank 3 was ended because something else wrote into its connection to pytest",
    "test_interrupt": "ranks 0, 3 of 4 failed in call: KeyboardInterrupt",
    "test_timeout": "timed out after 2 s: rank 3 has not finished call",
    "test_three_machines": "nodes=3: 3 machines needed, 2 in this session",
    "test_gpus": "NCCL needs a GPU for each rank: 4 needed, 0 on node 0 (alpha), 0 on node 1",
}


@pytest.fixture(scope="module")
def session(cluster: Cluster, new_suite: Callable[[], Suite]) -> Session:
    suite = new_suite()
    suite.write("test_examples.py", EXAMPLES)
    suite.write("test_lightning.py", LIGHTNING)
    suite.write("test_plain.py", PLAIN)
    return cluster.run(suite, torchrun=True)


def test_every_test_has_a_verdict(session: Session) -> None:
    assert len(session.alpha.results) == len(ALL), session.text


@pytest.mark.parametrize("name", ALL)
def test_verdict(session: Session, name: str) -> None:
    result = session.alpha[name]
    assert result.verdict == ALL[name], result.text


@pytest.mark.parametrize("name", TEXTS)
def test_text(session: Session, name: str) -> None:
    assert TEXTS[name] in flat(session.alpha[name].text)


@pytest.mark.parametrize("name", ["test_assert", "test_deadlock", "test_crash", "test_timeout"])
def test_a_failure_names_the_machines_of_its_ranks(session: Session, name: str) -> None:
    text = flat(session.alpha[name].text)
    assert "ranks 0-1 on node 0 (alpha), ranks 2-3 on node 1 (beta)." in text


def test_output_of_remote_ranks_is_shown(session: Session) -> None:
    (report,) = (found for found in session.alpha["test_assert"].reports if found.when == "call")
    assert any("printed by 3" in text for _, text in report.sections), report.sections


def test_output_of_a_remote_rank_that_was_killed_is_shown(session: Session) -> None:
    assert any("last words of 2" in text for text in session.alpha["test_kill"].sections.values())


def test_both_nodes_end_with_pytest_s_exit_code(session: Session) -> None:
    assert session.alpha.returncode == session.beta.returncode == 1, session.text


def test_nothing_survives(cluster: Cluster, session: Session) -> None:
    assert session.alpha
    assert cluster.survivors_after(3) == []
    for name in ("alpha", "beta"):
        assert not list((cluster.folder / name).glob("pddp-*"))
