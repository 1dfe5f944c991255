"""An inner suite: blocks that are used wrongly, and contracts that are broken."""

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.ddp(world_size=2)
ones = torch.ones


def test_too_many(ddp):
    with ddp.comms() as comms:
        dist.all_reduce(ones(4))
        dist.all_reduce(ones(4))
    assert comms.counts() == {"all_reduce": 1}


def test_left_open(ddp):
    ddp.comms().__enter__()


def test_after_it(ddp):
    with ddp.comms() as comms:
        dist.all_reduce(ones(4))
    assert comms.counts() == {"all_reduce": 1}


@pytest.fixture(scope="module")
def wide(ddp):
    with ddp.comms() as comms:
        yield comms


def test_open_for_longer_than_a_test(wide):
    pass


def test_nested(ddp):
    with ddp.comms(), ddp.comms():
        pass


def test_used_twice(ddp):
    comms = ddp.comms()
    with comms:
        pass
    with comms:
        pass


def test_never_entered(ddp):
    ddp.comms().counts()


def test_unknown_operation(ddp):
    with ddp.comms() as comms:
        pass
    comms.of("allreduce")


def test_unknown_group(ddp):
    with ddp.comms() as comms:
        pass
    comms.on("tp")


def test_called_directly(ddp):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    with ddp.comms():
        dist.all_reduce(ones(1))
        backend.allreduce([ones(4)]).wait()


def test_warmup_without_a_model(ddp):
    ddp.comms(warmup=1)


def test_nothing_but_warmup(ddp):
    model = torch.nn.Linear(2, 2)
    with ddp.comms(model, warmup=2):
        model(ones(2, 2))
