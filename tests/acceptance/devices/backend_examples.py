"""Tests on backends that the plugin has never met: a registered one, and torch's ``fake``."""

from __future__ import annotations

CONFTEST = """
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import _create_work_from_future


    def create(store, rank, world_size, timeout):
        return dist.ProcessGroupGloo(store, rank, world_size, timeout)


    dist.Backend.register_backend("own", create, devices=["cpu", "cuda"])


    class InPython(dist.ProcessGroup):
        def allreduce(self, tensors, opts=None):
            done = torch.futures.Future()
            done.set_result(tensors)
            return _create_work_from_future(done)

        def barrier(self, opts=None):
            return self.allreduce([])


    def in_python(store, rank, world_size, timeout):
        return InPython(rank, world_size)


    dist.Backend.register_backend("in_python", in_python, devices=["cpu"])


    def unreachable(store, rank, world_size, timeout):
        raise OSError("no route to the switch")


    dist.Backend.register_backend("unreachable", unreachable, devices=["cpu"])
"""
"""Gloo by another name, of which torch numbers no collective and keeps another's records; and a
backend in Python, which torch takes for the group itself and gives no name."""

SOURCE = """
    import os
    import time

    import pytest
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    pytestmark = pytest.mark.ddp(world_size=3, backend="own")


    @pytest.fixture(scope="module")
    def model(ddp):
        return DistributedDataParallel(torch.nn.Linear(2, 1))


    def reduced(ddp):
        tensor = torch.full((2,), float(ddp.rank))
        dist.all_reduce(tensor)
        assert tensor.tolist() == [3.0, 3.0]


    def test_good(ddp):
        assert ddp.backend == dist.get_backend() == "own"
        assert ddp.device.type == "cpu"
        reduced(ddp)


    def test_good_messages(ddp):
        if ddp.rank == 0:
            dist.send(torch.ones(1), dst=1)
        elif ddp.rank == 1:
            dist.recv(torch.zeros(1), src=0)


    def test_good_with_a_model(ddp, model):
        model(torch.ones(1, 2)).sum().backward()
        reduced(ddp)


    def test_good_slow_rank(ddp):
        if ddp.rank == 2:
            time.sleep(2)
        reduced(ddp)


    def test_good_other_line(ddp):
        if ddp.rank == 0:
            dist.all_reduce(torch.ones(1))
        else:
            torch.distributed._functional_collectives.all_reduce(
                torch.ones(1), "sum", dist.group.WORLD
            )


    def test_bad_assert(ddp):
        assert ddp.rank != 1
        reduced(ddp)


    def test_good_after_it(ddp):
        reduced(ddp)


    def test_bad_death(ddp):
        if ddp.rank == 2:
            os._exit(3)
        reduced(ddp)


    def test_good_after_the_death(ddp, model):
        reduced(ddp)


    def test_left_out_of_step(ddp):
        if ddp.rank == 0:
            dist.all_reduce(torch.ones(1), async_op=True)


    def test_good_after_that(ddp):
        reduced(ddp)


    @pytest.mark.ddp(timeout=6)
    def test_bad_hang(ddp):
        if ddp.rank > 0:
            reduced(ddp)


    @pytest.mark.ddp(timeout=6)
    def test_bad_receive(ddp):
        if ddp.rank == 0:
            dist.recv(torch.ones(1), src=1)


    @pytest.mark.ddp(timeout=60)
    def test_bad_side_channel(ddp):
        if ddp.rank:
            ddp.barrier()


    def test_good_last(ddp):
        reduced(ddp)
"""

OTHERS = """
    import pytest
    import torch
    import torch.distributed as dist


    @pytest.mark.ddp(world_size=2, backend="fake")
    def test_fake(ddp):
        assert ddp.backend == dist.get_backend() == "fake"
        for _ in range(2 + ddp.rank):  # it talks to nobody: each rank is a world of its own
            dist.all_reduce(torch.ones(1))


    @pytest.mark.ddp(world_size=2, backend="fake")
    def test_fake_again(ddp):
        dist.barrier()


    @pytest.mark.ddp(world_size=2, backend="CPU:gloo")
    def test_gloo_for_one_kind_of_device(ddp):
        assert ddp.backend == "cpu:gloo"
        dist.all_reduce(torch.ones(1))


    @pytest.mark.ddp(world_size=2, backend="cpu:gloo,cuda:own", device="cpu")
    def test_two_in_one_group(ddp):
        assert ddp.device.type == "cpu"
        if ddp.rank == 0:
            dist.send(torch.ones(1), dst=1)
        else:
            dist.recv(torch.ones(1), src=0)
        dist.all_reduce(torch.ones(1))


    @pytest.mark.ddp(world_size=2, backend="own", init=False)
    def test_group_of_its_own(ddp):
        dist.init_process_group("own")
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()


    @pytest.mark.ddp(world_size=2, backend="unreachable")
    def test_unreachable(ddp):
        pass


    @pytest.mark.ddp(world_size=2, backend="in_python")
    def test_in_python(ddp):
        tensor = torch.ones(1)
        for _ in range(1 + ddp.rank):
            dist.all_reduce(tensor)
        dist.barrier()
        assert tensor.item() == 1


    @pytest.mark.ddp(world_size=2, backend="in_python")
    def test_in_python_and_wrong(ddp):
        dist.barrier()
        assert ddp.rank


    @pytest.mark.ddp(world_size=2, backend="in_python")
    def test_in_python_after_it(ddp):
        dist.barrier()


    @pytest.mark.ddp(world_size=2)
    def test_own_beside_gloo(ddp):
        own = dist.new_group([0, 1], backend="own")
        if ddp.rank == 0:
            dist.send(torch.ones(1), dst=1, group=own)
        else:
            dist.recv(torch.ones(1), src=0, group=own)
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group(own)


    @pytest.mark.ddp(world_size=2)
    def test_unlike_beside_own(ddp):
        own = dist.new_group([0, 1], backend="own")
        op = dist.ReduceOp.MAX if ddp.rank else dist.ReduceOp.SUM
        dist.all_reduce(torch.ones(1), op=op)
        dist.destroy_process_group(own)


    @pytest.mark.ddp(world_size=2, device="meta")
    def test_meta(ddp):
        assert torch.ones(2, device=ddp.device).is_meta


    @pytest.mark.ddp(world_size=2, backend="xccl")
    def test_no_xpu(ddp):
        pass


    @pytest.mark.ddp(world_size=2, backend="ucc")
    def test_no_ucc(ddp):
        pass


    @pytest.mark.ddp(world_size=2, backend="hccl", init=False)
    def test_no_hccl(ddp):
        pass


    @pytest.mark.ddp(world_size=2, backend="cpu:glo")
    def test_typo(ddp):
        pass


    @pytest.mark.ddp(world_size=2, backend="cpu:glo")
    def test_typo_again(ddp):
        pass
"""
