"""Hangs are proved in a moment and by name; see also ``test_no_false_alarm.py``.

The process groups keep their timeout of 30 minutes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite

PRELUDE = """
    import threading
    import time

    import pytest
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    ddp2 = pytest.mark.ddp(world_size=2)
    ddp3 = pytest.mark.ddp(world_size=3)


    def ones(*shape):
        return torch.ones(*shape)


    def rooted(operation, rank):
        several = [ones(4) for _ in range(3)] if rank == 0 else None
        tensors = (several,) if operation in ("scatter", "gather") else ()
        getattr(dist, operation)(ones(4), *tensors, 0)
"""

HANGS = (
    PRELUDE
    + """
    @ddp2
    def test_all_reduce_against_barrier(ddp):
        dist.all_reduce(ones(1))
        if ddp.rank == 0:
            dist.all_reduce(ones(4))  # here 0
        else:
            dist.barrier()  # here 1


    @ddp3
    def test_early_return(ddp):
        if ddp.rank == 1:
            return
        dist.all_reduce(ones(1))  # here


    @ddp2
    def test_three_against_two(ddp):
        for _ in range(3 - ddp.rank):
            dist.all_reduce(ones(4))


    @ddp2
    def test_guarded(ddp):
        if ddp.rank == 0:
            dist.broadcast(ones(2), src=0, async_op=True).wait()


    @ddp2
    def test_future_of_one_rank(ddp):
        if ddp.rank == 0:
            dist.all_reduce(ones(2), async_op=True).get_future().wait()


    @ddp2
    def test_chained_future_of_one_rank(ddp):
        if ddp.rank == 0:
            future = dist.all_reduce(ones(2), async_op=True).get_future()
            future.then(lambda done: done.value()[0] / 2).then(lambda done: done.value()).wait()


    @ddp2
    def test_receive_that_nobody_sends(ddp):
        if ddp.rank == 0:
            dist.recv(ones(1), src=1)


    @ddp2
    def test_second_receive_that_nobody_sends(ddp):
        if ddp.rank == 0:
            dist.recv(ones(1), src=1)
            dist.recv(ones(1), src=1)
        else:
            dist.send(ones(1), dst=0)


    @ddp2
    def test_receive_from_each_other(ddp):
        dist.recv(ones(1), src=1 - ddp.rank)


    @ddp2
    def test_send_that_nobody_receives(ddp):
        if ddp.rank == 0:
            dist.send(ones(0), dst=1)


    @ddp2
    def test_second_send_that_nobody_receives(ddp):
        if ddp.rank == 0:
            first, second = (dist.isend(ones(1), dst=1) for _ in range(2))
            first.wait()
            second.wait()
        else:
            dist.recv(ones(1), src=0)


    @ddp2
    def test_send_to_each_other(ddp):
        dist.send(ones(1), dst=1 - ddp.rank, tag=3)
        dist.recv(ones(1), src=1 - ddp.rank, tag=3)


    @ddp3
    def test_ring_of_sends(ddp):
        dist.isend(ones(10**6), dst=(ddp.rank + 1) % 3).wait()
        dist.recv(ones(10**6), src=(ddp.rank - 1) % 3)


    @ddp2
    def test_send_with_another_tag(ddp):
        if ddp.rank == 0:
            dist.send(ones(1), dst=1, tag=1)
        else:
            dist.recv(ones(1), src=0, tag=2)


    @ddp2
    def test_send_before_a_barrier(ddp):
        if ddp.rank == 0:
            dist.send(ones(1), dst=1)
        dist.barrier()
        if ddp.rank == 1:
            dist.recv(ones(1), src=0)


    @ddp2
    def test_crossed_subgroups(ddp):
        first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
        for group in (first, second) if ddp.rank == 0 else (second, first):
            dist.all_reduce(ones(1), group=group)


    @ddp3
    def test_mismatch_in_subgroup(ddp):
        pair, others = dist.new_group([0, 1]), dist.new_group([1, 2])
        if ddp.rank == 0:
            dist.all_reduce(ones(2), group=pair)
        if ddp.rank == 1:
            dist.barrier(group=pair)
        if ddp.rank == 2:
            time.sleep(1.5)


    @ddp3
    @pytest.mark.parametrize("operation", ["broadcast", "scatter", "gather", "reduce"])
    def test_root_waits_for_what_a_receiver_sends_later(ddp, operation):
        if ddp.rank == 0:
            dist.recv(ones(1), src=1)
        rooted(operation, ddp.rank)
        if ddp.rank == 1:
            dist.send(ones(1), dst=0)


    @ddp3
    def test_rank_of_a_ring_waits_for_its_neighbour(ddp):
        if ddp.rank == 2:
            dist.recv(ones(1), src=1)
        rooted("reduce", ddp.rank)
        if ddp.rank == 1:
            dist.send(ones(1), dst=2)


    @ddp3
    def test_root_is_the_first_of_an_unsorted_group(ddp):
        group = dist.new_group([2, 1, 0], sort_ranks=False)
        if ddp.rank == 2:
            dist.recv(ones(1), src=1)
        dist.broadcast(ones(4), src=2, group=group)
        if ddp.rank == 1:
            dist.send(ones(1), dst=2)


    @ddp2
    def test_backward_on_one_rank(ddp):
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        if ddp.rank == 0:
            model(ones(1, 2)).sum().backward()


    @ddp2
    def test_extra_metric(ddp):
        if ddp.rank == 0:
            dist.all_reduce(torch.full((1,), 100.0))  # the metric
        dist.all_reduce(ones(1))  # the gradient


    @ddp2
    def test_in_teardown(ddp, barrier_in_teardown):
        pass


    @pytest.fixture
    def barrier_in_teardown(ddp):
        yield
        if ddp.rank == 1:
            dist.barrier()


    @ddp2
    def test_next_one_passes(ddp):
        tensor = ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 2
"""
)

VERDICTS = {
    "all_reduce_against_barrier": "mismatch: rank 0 waits in all_reduce #2 of the default group, "
    "rank 1 in barrier #2",
    "early_return": "deadlock: rank 0 waits in all_reduce #1 of the default group, rank 1 has "
    "ended the test without it",
    "three_against_two": "deadlock: rank 0 waits in all_reduce #3 of the default group, rank 1 has",
    "guarded": "deadlock: rank 0 waits in broadcast #1 of the default group, rank 1 has ended",
    "future_of_one_rank": "deadlock: rank 0 waits in all_reduce #1 of the default group",
    "chained_future_of_one_rank": "deadlock: rank 0 waits in all_reduce #1 of the default group",
    "receive_that_nobody_sends": "deadlock: rank 0 waits in recv #1 from rank 1 (tag 0), rank 1 "
    "has ended the test and cannot send it",
    "second_receive_that_nobody_sends": "deadlock: rank 0 waits in recv #2 from rank 1 (tag 0)",
    "receive_from_each_other": "deadlock: rank 0 waits in recv #1 from rank 1 (tag 0), rank 1 in "
    "recv #1 from rank 0 (tag 0)",
    "send_that_nobody_receives": "deadlock: rank 0 waits in send #1 to rank 1 (tag 0), rank 1 "
    "has ended the test and cannot receive it",
    "second_send_that_nobody_receives": "deadlock: rank 0 waits in send #2 to rank 1 (tag 0)",
    "send_to_each_other": "deadlock: rank 0 waits in send #1 to rank 1 (tag 3), rank 1 in "
    "send #1 to rank 0 (tag 3)",
    "ring_of_sends": "deadlock: rank 0 waits in send #1 to rank 1 (tag 0), rank 1 in "
    "send #1 to rank 2 (tag 0)",
    "send_with_another_tag": "deadlock: rank 0 waits in send #1 to rank 1 (tag 1), rank 1 in "
    "recv #1 from rank 0 (tag 2)",
    "send_before_a_barrier": "deadlock: rank 0 waits in send #1 to rank 1 (tag 0), rank 1 in "
    "barrier #1 of the default group",
    "crossed_subgroups": "deadlock: rank 0 waits in all_reduce #1 of the group of ranks 0, 1",
    "mismatch_in_subgroup": "mismatch: rank 0 waits in all_reduce #1 of the group of ranks 0, 1, "
    "rank 1 in barrier #1",
    **{
        f"root_waits_for_what_a_receiver_sends_later[{operation}]": "deadlock: rank 0 waits in "
        f"recv #1 from rank 1 (tag 0), rank 1 in {operation} #1 of the default group"
        for operation in ("broadcast", "scatter", "gather", "reduce")
    },
    "rank_of_a_ring_waits_for_its_neighbour": "deadlock: rank 0 waits in reduce #1 of the default "
    "group, rank 2 in recv #1 from rank 1 (tag 0)",
    "root_is_the_first_of_an_unsorted_group": "deadlock: rank 0 waits in broadcast #1 of the group "
    "of ranks 2, 1, 0, rank 2 in recv #1 from rank 1 (tag 0)",
    "backward_on_one_rank": "deadlock: rank 0 waits in ",
    "extra_metric": "deadlock: rank 0 waits in all_reduce #2 of the default group, rank 1 has",
}

SILENT = (
    PRELUDE
    + """
    @ddp2
    def test_sum_against_max(ddp):
        op = dist.ReduceOp.SUM if ddp.rank else dist.ReduceOp.MAX
        dist.all_reduce(ones(3), op=op)


    @ddp2
    def test_dtypes(ddp):
        dist.all_reduce(torch.ones(4, dtype=[torch.float32, torch.int32][ddp.rank]))


    @ddp2
    def test_gather(ddp):
        parts = [torch.zeros(3), torch.zeros(3)] if ddp.rank == 0 else None
        dist.gather(ones(3 - ddp.rank), parts)  # gloo leaves the third element as it was


    @ddp2
    def test_scatter(ddp):
        parts = [ones(2), ones(2)] if ddp.rank == 0 else None
        dist.scatter(torch.zeros(2 + ddp.rank), parts)


    @ddp2
    def test_extra_metric_left_pending(ddp):
        if ddp.rank == 0:
            dist.all_reduce(ones(1), async_op=True)  # the metric
        dist.all_reduce(ones(1), async_op=True)  # the gradient


    @ddp2
    def test_swapped(ddp):
        x, y = ones(1), ones(1)
        if ddp.rank == 0:
            dist.all_reduce(x)
            dist.all_reduce(y)
        else:
            dist.all_reduce(y)
            dist.all_reduce(x)
"""
)


@pytest.fixture(scope="module")
def hangs(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_hang.py", HANGS)
    return suite.run()


@pytest.fixture(scope="module")
def silent(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_silent.py", SILENT)
    return suite.run()


@pytest.mark.parametrize("name", VERDICTS)
def test_hang_is_proved(hangs: Finished, name: str) -> None:
    result = hangs[f"test_{name}"]
    assert result.verdict == "failed"
    assert VERDICTS[name] in " ".join(result.text.split())
    assert result.phase("call").message.startswith(VERDICTS[name].partition(":")[0])


def test_lines_of_both_sides_are_shown(hangs: Finished) -> None:
    text = hangs["test_all_reduce_against_barrier"].text
    lines = HANGS.splitlines()
    for mark in ("# here 0", "# here 1"):
        number = next(n for n, line in enumerate(lines, 1) if mark in line)
        assert f"test_hang.py:{number}" in text


def test_place_where_ranks_parted_is_shown(hangs: Finished) -> None:
    text = hangs["test_extra_metric"].text
    assert "the ranks diverge at collective #1 of the default group" in " ".join(text.split())
    assert "# the metric" in text
    assert "# the gradient" in text


def test_hang_in_teardown_is_an_error(hangs: Finished) -> None:
    result = hangs["test_in_teardown"]
    assert result.verdict == "passed+error"
    assert "deadlock: rank 1 waits in barrier #1" in " ".join(result.text.split())


def test_next_test_passes(hangs: Finished) -> None:
    assert hangs["test_next_one_passes"].verdict == "passed"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sum_against_max", ("all_reduce(MAX, 3 x float32)", "all_reduce(SUM, 3 x float32)")),
        ("dtypes", ("4 x float32", "4 x int32")),
        ("gather", ("gather(3 x float32, root 0)", "gather(2 x float32, root 0)")),
        ("scatter", ("scatter(2 x float32, root 0)", "scatter(3 x float32, root 0)")),
        ("extra_metric_left_pending", ("unequal number of collectives", "# the metric")),
    ],
)
def test_silent_mismatch_fails(silent: Finished, name: str, words: tuple[str, ...]) -> None:
    result = silent[f"test_{name}"]
    assert result.verdict == "failed"
    for word in words:
        assert word in " ".join(result.text.split())


def test_swapped_collectives_are_a_warning(silent: Finished) -> None:
    assert silent["test_swapped"].verdict == "passed"
    assert any("may be swapped" in warning for warning in silent.warnings)


def test_check_can_be_switched_off(suite: Suite) -> None:
    suite.write("test_silent.py", SILENT)
    finished = suite.run("-oddp_check_collectives=off", "-k", "sum_against_max")
    finished.assert_outcomes(passed=1)
