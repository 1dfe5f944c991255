"""Inner tests whose ranks issue unlike numbers of collectives, by mistake or legally.

Data for ``test_verdict_collectives.py``.
"""

from __future__ import annotations

PRELUDE = """
    import pytest
    import torch
    import torch.distributed as dist

    ddp3 = pytest.mark.ddp(world_size=3)


    def issue(count, group=None):
        for _ in range(count):
            dist.all_reduce(torch.ones(2), group=group)


    def after(ddp):
        ones = torch.ones(1)
        dist.all_reduce(ones)
        assert ones.item() == ddp.world_size
"""

UNEQUAL = """
    @ddp3
    @pytest.mark.parametrize("rank", range(3))
    def test_broadcast_by_source_alone(ddp, rank):
        issue(2)
        if ddp.rank == rank:
            dist.broadcast(torch.ones(1), src=rank)


    @ddp3
    @pytest.mark.parametrize("rank", range(3))
    def test_one_more_left_pending(ddp, rank):
        issue(2)
        if ddp.rank == rank:
            dist.all_reduce(torch.ones(1), async_op=True)


    @ddp3
    @pytest.mark.parametrize("rank", range(3))
    def test_one_less(ddp, rank):
        # Nobody waits for anybody in what the others leave pending.
        if ddp.rank != rank:
            dist.all_reduce(torch.ones(1), async_op=True)


    @ddp3
    def test_in_subgroup(ddp):
        pair = dist.new_group([0, 2], group_desc="the_pair")
        issue(1)
        if ddp.rank == 0:
            dist.all_reduce(torch.ones(1), group=pair, async_op=True)


    @ddp3
    @pytest.mark.xfail(reason="known to disagree", strict=True)
    def test_expected(ddp):
        if ddp.rank == 1:
            dist.all_reduce(torch.ones(1), async_op=True)


    @ddp3
    @pytest.mark.xfail(reason="known to raise", raises=ValueError)
    def test_expects_another(ddp):
        if ddp.rank == 1:
            dist.all_reduce(torch.ones(1), async_op=True)


    @ddp3
    def test_failure_is_reported_first(ddp):
        if ddp.rank == 1:
            dist.all_reduce(torch.ones(1), async_op=True)
        assert ddp.rank != 2, "the failure"


    @pytest.fixture
    def reduces_on_rank_1(ddp):
        yield
        if ddp.rank == 1:
            dist.all_reduce(torch.ones(1), async_op=True)


    @ddp3
    def test_in_teardown(ddp, reduces_on_rank_1):
        pass


    @ddp3
    def test_skip(ddp):
        if ddp.rank == 1:
            dist.all_reduce(torch.ones(1), async_op=True)
        pytest.skip("after all")
"""

UNEQUAL_NAMES = (
    *(f"broadcast_by_source_alone[{rank}]" for rank in range(3)),
    *(f"one_more_left_pending[{rank}]" for rank in range(3)),
    *(f"one_less[{rank}]" for rank in range(3)),
    "in_subgroup",
    "expected",
    "failure_is_reported_first",
    "in_teardown",
    "skip",
)

EQUAL = """
    @ddp3
    @pytest.mark.parametrize("count", [0, 1, 40])
    def test_all_reduce(ddp, count):
        issue(count)


    @ddp3
    def test_branches(ddp):
        # Ranks may reach one collective from different lines.
        if ddp.rank == 0:
            dist.broadcast(torch.ones(1), src=0)
        else:
            got = torch.zeros(1)
            dist.broadcast(got, src=0)
            assert got.item() == 1


    @ddp3
    def test_subgroup_of_some(ddp):
        pair = dist.new_group([0, 2])
        if ddp.rank in (0, 2):
            issue(3, pair)


    @ddp3
    def test_subgroups_with_unlike_work(ddp):
        first, second = dist.new_group([0, 1]), dist.new_group([1, 2])
        if ddp.rank in (0, 1):
            issue(1, first)
        if ddp.rank in (1, 2):
            issue(5, second)


    @ddp3
    def test_subgroup_of_one(ddp):
        alone, _, _ = [dist.new_group([rank]) for rank in range(3)]
        if ddp.rank == 0:
            issue(4, alone)


    @ddp3
    def test_subgroup_destroyed(ddp):
        pair = dist.new_group([0, 1])
        if ddp.rank in (0, 1):
            issue(2, pair)
            dist.destroy_process_group(pair)
        issue(1)


    @ddp3
    def test_new_subgroups(ddp):
        own, _ = dist.new_subgroups_by_enumeration([[0, 1], [2]])
        issue(ddp.rank // 2 + 1, own)


    @ddp3
    def test_send_and_recv(ddp):
        # Rank 0 sends two messages, the others receive one each.
        if ddp.rank == 0:
            dist.send(torch.tensor([7.0]), dst=1)
            dist.send(torch.tensor([8.0]), dst=2)
        else:
            got = torch.zeros(1)
            dist.recv(got, src=0)
            assert got.item() == 6 + ddp.rank


    @ddp3
    def test_isend_and_irecv(ddp):
        if ddp.rank == 2:
            works = [dist.isend(torch.tensor([1.0]), dst=dst) for dst in (0, 1)]
        else:
            works = [dist.irecv(torch.zeros(1), src=2)]
        for work in works:
            work.wait()


    @ddp3
    def test_recv_from_any(ddp):
        if ddp.rank == 0:
            senders = {dist.recv(torch.zeros(1)) for _ in range(2)}
            assert senders == {1, 2}
        else:
            dist.send(torch.ones(1), dst=0)


    @ddp3
    def test_pipeline(ddp):
        batch = []
        if ddp.rank < 2:
            batch.append(dist.P2POp(dist.isend, torch.ones(4), ddp.rank + 1))
        if ddp.rank > 0:
            batch.append(dist.P2POp(dist.irecv, torch.zeros(4), ddp.rank - 1))
        for work in dist.batch_isend_irecv(batch):
            work.wait()


    @ddp3
    def test_send_and_recv_in_subgroup(ddp):
        pair = dist.new_group([0, 2])
        if ddp.rank == 0:
            for _ in range(3):
                dist.send(torch.ones(1), dst=2, group=pair)
            issue(1, pair)
        if ddp.rank == 2:
            for _ in range(3):
                dist.recv(torch.zeros(1), src=0, group=pair)
            issue(1, pair)


    @ddp3
    def test_send_and_recv_of_objects(ddp):
        if ddp.rank == 0:
            dist.send_object_list([{"a": 1}], dst=1)
        if ddp.rank == 1:
            got = [None]
            dist.recv_object_list(got, src=0)
            assert got == [{"a": 1}]


    @ddp3
    def test_gather(ddp):
        out = [torch.zeros(2) for _ in range(3)] if ddp.rank == 1 else None
        dist.gather(torch.full((2,), float(ddp.rank)), out, dst=1)
        if ddp.rank == 1:
            assert [t[0].item() for t in out] == [0, 1, 2]


    @ddp3
    def test_scatter(ddp):
        parts = [torch.full((2,), float(n)) for n in range(3)] if ddp.rank == 0 else None
        got = torch.zeros(2)
        dist.scatter(got, parts, src=0)
        assert got[1].item() == ddp.rank


    @ddp3
    def test_reduce(ddp):
        dist.reduce(torch.ones(2), dst=2)


    @ddp3
    def test_all_to_all_uneven(ddp):
        # Rank r sends r + 1 elements to everybody.
        sent = torch.full((3 * (ddp.rank + 1),), float(ddp.rank))
        got = torch.zeros(6)
        dist.all_to_all_single(got, sent, [1, 2, 3], [ddp.rank + 1] * 3)
        assert got.tolist() == [0, 1, 1, 2, 2, 2]


    @ddp3
    def test_objects(ddp):
        got = [None] * 3
        dist.all_gather_object(got, {"rank": ddp.rank, "filler": "x" * 1000 * ddp.rank})
        assert [entry["rank"] for entry in got] == [0, 1, 2]
        dist.broadcast_object_list(got, src=2)
        dist.gather_object(ddp.rank, [None] * 3 if ddp.rank == 0 else None, dst=0)


    @ddp3
    def test_reduce_scatter_and_all_gather(ddp):
        got = torch.zeros(2)
        dist.reduce_scatter_tensor(got, torch.ones(6))
        dist.all_gather_into_tensor(torch.zeros(6), got)
        dist.all_gather([torch.zeros(2) for _ in range(3)], got)


    @ddp3
    def test_async_waited_late(ddp):
        works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(10)]
        for work in works:
            work.wait()


    @ddp3
    def test_async_never_waited(ddp):
        for _ in range(10):
            dist.all_reduce(torch.ones(1), async_op=True)


    @ddp3
    def test_coalesced(ddp):
        dist.all_reduce_coalesced([torch.ones(1), torch.ones(2)])


    @ddp3
    def test_monitored_barrier(ddp):
        dist.barrier()
        dist.monitored_barrier()


    @ddp3
    def test_own_world(ddp):
        issue(1)
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        issue(ddp.world_size)
        dist.destroy_process_group()


    @ddp3
    def test_side_channel(ddp):
        assert ddp.gather(ddp.rank) == [0, 1, 2]
        assert ddp.broadcast("word" if ddp.rank == 1 else None, source=1) == "word"
        ddp.barrier()


    @pytest.mark.ddp(world_size=3, init=False)
    def test_without_group(ddp):
        assert not dist.is_initialized()


    @pytest.mark.ddp(world_size=1)
    def test_alone(ddp):
        issue(2)


    @pytest.mark.ddp(world_size=2)
    def test_training(ddp):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            loss = model(torch.randn(4, 3)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


    @pytest.mark.ddp(world_size=2)
    def test_joined_training(ddp):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
        with model.join():
            for _ in range(2 + ddp.rank):
                model(torch.randn(4, 3)).sum().backward()
"""

EQUAL_NAMES = (
    *(f"all_reduce[{count}]" for count in (0, 1, 40)),
    "branches",
    "subgroup_of_some",
    "subgroups_with_unlike_work",
    "subgroup_of_one",
    "subgroup_destroyed",
    "new_subgroups",
    "send_and_recv",
    "isend_and_irecv",
    "recv_from_any",
    "pipeline",
    "send_and_recv_in_subgroup",
    "send_and_recv_of_objects",
    "gather",
    "scatter",
    "reduce",
    "all_to_all_uneven",
    "objects",
    "reduce_scatter_and_all_gather",
    "async_waited_late",
    "async_never_waited",
    "coalesced",
    "monitored_barrier",
    "own_world",
    "side_channel",
    "without_group",
    "alone",
    "training",
    "joined_training",
)


def with_next(blocks: str) -> str:
    """The blocks, each test followed by one that uses the default group."""
    head, *tests = blocks.split("    def test_")
    out = head
    for block in tests:
        name = block.partition("(")[0]
        body, gap, decorators = block.partition("\n\n\n")
        size = "1" if name == "alone" else "2" if "training" in name else "3"
        out += f"    def test_{body}\n\n\n"
        out += f"    @pytest.mark.ddp(world_size={size})\n    def test_after_{name}(ddp):\n"
        out += f"        after(ddp)\n{gap}{decorators}"
    return PRELUDE + "\n\n" + out
