"""Groups that a test makes anew, and groups that it leaves with work under way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite, flat

PRELUDE = """
    import os

    import pytest
    import torch
    import torch.distributed as dist

    kept = []


    def make_anew(ddp, tmp_path):
        dist.destroy_process_group()
        store = dist.FileStore(str(tmp_path / "store"), ddp.world_size)
        dist.init_process_group("gloo", store=store, rank=ddp.rank, world_size=ddp.world_size)


    def pass_on(ddp, times):
        for _ in range(times):
            if ddp.rank == 0:
                dist.send(torch.ones(1), dst=1)
            elif ddp.rank == 1:
                dist.recv(torch.ones(1), src=0)


    def all_reduce(times):
        for _ in range(times):
            dist.all_reduce(torch.ones(1))
"""

MADE_ANEW = (
    PRELUDE
    + """
    ddp2 = pytest.mark.ddp(world_size=2)
    ddp3 = pytest.mark.ddp(world_size=3)


    @ddp3
    def test_messages_before(ddp, tmp_path):
        pass_on(ddp, 2)
        all_reduce(1)
        make_anew(ddp, tmp_path)
        all_reduce(1)


    @ddp3
    def test_messages_after(ddp, tmp_path):
        all_reduce(1)
        make_anew(ddp, tmp_path)
        pass_on(ddp, 2)
        all_reduce(1)


    @ddp3
    def test_unequal(ddp, tmp_path):
        dist.barrier()
        make_anew(ddp, tmp_path)
        if ddp.rank < 2:
            dist.all_reduce(torch.ones(1), async_op=True)


    @ddp2
    def test_group_with_a_past(ddp):
        all_reduce(3)


    @pytest.mark.parametrize("after", [0, 1, 4])
    @pytest.mark.parametrize("before", [0, 1])
    @ddp2
    def test_hang(ddp, tmp_path, before, after):
        all_reduce(before)
        make_anew(ddp, tmp_path)
        all_reduce(after + 1 - ddp.rank)


    @ddp2
    def test_receive(ddp, tmp_path):
        pass_on(ddp, 2)
        make_anew(ddp, tmp_path)
        if ddp.rank == 1:
            dist.recv(torch.ones(1), src=0)
"""
)

UNDER_WAY = (
    PRELUDE
    + """
    def begin_all_reduce():
        kept.append(dist.all_reduce(torch.ones(1), async_op=True))


    @pytest.mark.ddp(world_size=3)
    def test_one_rank_left_it_out(ddp):
        if ddp.rank < 2:
            begin_all_reduce()


    @pytest.mark.ddp(world_size=3)
    def test_one_rank_raises_before(ddp):
        assert ddp.rank < 2
        begin_all_reduce()


    @pytest.mark.parametrize("dead", [0, 2, 3])
    @pytest.mark.ddp(world_size=4)
    def test_one_rank_dies_before(ddp, dead):
        if ddp.rank == dead:
            os._exit(3)
        begin_all_reduce()


    @pytest.mark.ddp(world_size=1)
    def test_next_on_1(ddp):
        all_reduce(1)


    @pytest.mark.ddp(world_size=2)
    def test_next_on_2(ddp):
        all_reduce(1)


    @pytest.mark.ddp(world_size=3)
    def test_next_on_3(ddp):
        all_reduce(1)
"""
)


@pytest.fixture(scope="module")
def made_anew(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_made_anew.py", MADE_ANEW)
    return suite.run()


@pytest.mark.parametrize("when", ["before", "after"])
def test_messages_of_another_group_are_no_collectives(made_anew: Finished, when: str) -> None:
    assert made_anew[f"test_messages_{when}"].verdict == "passed"


def test_unequal_collectives_are_the_new_group_s_own(made_anew: Finished) -> None:
    result = made_anew["test_unequal"]
    assert result.verdict == "failed"
    assert "ranks 0-1 issued 1, rank 2 issued 0" in flat(result.text)
    assert "barrier" not in result.text


@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize("before", [0, 1])
def test_hang_is_proved_by_the_new_group_s_number(
    made_anew: Finished, before: int, after: int
) -> None:
    result = made_anew[f"test_hang[{before}-{after}]"]
    assert result.verdict == "failed"
    assert f"deadlock: rank 0 waits in all_reduce #{after + 1} of the default" in flat(result.text)


def test_receive_is_proved_by_the_new_group_s_messages(made_anew: Finished) -> None:
    result = made_anew["test_receive"]
    assert result.verdict == "failed"
    assert "deadlock: rank 1 waits in recv #1 from rank 0 (tag 0)" in flat(result.text)


@pytest.mark.parametrize(
    ("bad", "world_size"),
    [
        ("one_rank_left_it_out", 2),
        ("one_rank_raises_before", 1),
        ("one_rank_dies_before[0]", 3),
        ("one_rank_dies_before[2]", 1),
        ("one_rank_dies_before[3]", 2),
    ],
)
def test_collective_under_way_does_not_hold_up_the_next_test(
    suite: Suite, bad: str, world_size: int
) -> None:
    suite.write("test_under_way.py", UNDER_WAY)
    tests = (f"test_under_way.py::test_{bad}", f"test_under_way.py::test_next_on_{world_size}")
    finished = suite.run("--ddp-timeout=20", *tests)
    assert finished[f"test_{bad}"].verdict == "failed"
    assert finished[f"test_next_on_{world_size}"].verdict == "passed"


FAILED_TO_INIT = """
    import os
    import threading
    from datetime import timedelta

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2, init=False)


    def test_one_stays_away(ddp):
        if ddp.rank == 1:
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            return
        with open("pid", "w") as file:
            file.write(str(os.getpid()))
        with pytest.raises(dist.DistError):
            dist.init_process_group("gloo", timeout=timedelta(seconds=1))


    @pytest.mark.ddp(timeout=60)
    def test_next_one(ddp):
        if ddp.rank == 0:
            assert open("pid").read() == str(os.getpid())
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total == 2
        dist.destroy_process_group()
"""


def test_init_that_failed_does_not_count_for_the_next_test(suite: Suite) -> None:
    """torch numbers default groups, by the failed ones too: a rank and a new one would not meet."""
    suite.write("test_it.py", FAILED_TO_INIT)
    finished = suite.run()
    # Rank 1 is replaced for its thread. By its death, the pace of the machine would decide whether
    # rank 0 ends in time to stay.
    assert finished["test_one_stays_away"].verdict == "passed"
    assert "rank 1" in flat("\n".join(finished.warnings))
    assert finished["test_next_one"].verdict == "passed", finished["test_next_one"].text


BROKEN_BLOCK = """
    import pytest
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _coalescing_manager

    pytestmark = pytest.mark.ddp(world_size=2)


    @pytest.mark.parametrize("device", [None, torch.device("cpu")])
    def test_breaks_off(ddp, device):
        with _coalescing_manager(device=device):
            dist.all_reduce(torch.ones(1))
            raise ValueError("in the block")


    @pytest.mark.parametrize("times", [1, 2])
    def test_after_it(ddp, times):
        ones = [torch.ones(1) for _ in range(times)]
        with _coalescing_manager():
            for one in ones:
                dist.all_reduce(one)
        dist.all_reduce(ones[0])
        assert ones[0] == 4
"""


def test_a_coalescing_block_that_broke_off_does_not_reach_the_next_test(suite: Suite) -> None:
    suite.write("test_it.py", BROKEN_BLOCK)
    names = ("breaks_off[None]", "after_it[1]", "breaks_off[device1]", "after_it[2]")
    finished = suite.run(*(f"test_it.py::test_{name}" for name in names))
    for name in ("test_after_it[1]", "test_after_it[2]"):
        assert finished[name].verdict == "passed", finished[name].text
    finished.assert_outcomes(passed=2, failed=2)


DESTROYED = """
    import time

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2, timeout=60)


    def test_a_peer_that_destroys_its_group_is_noticed(ddp, tmp_path):
        dist.barrier()
        if ddp.rank == 0:
            dist.destroy_process_group()
            while not (tmp_path.parent / "noticed").exists():
                time.sleep(0.01)
        else:
            try:
                with pytest.raises(RuntimeError, match="by peer"):
                    dist.all_reduce(torch.ones(1))
            finally:
                (tmp_path.parent / "noticed").touch()


    def test_next(ddp):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2
"""


def test_the_connections_of_a_destroyed_group_close(suite: Suite) -> None:
    suite.write("test_destroyed.py", DESTROYED)
    suite.run().assert_outcomes(passed=2)
