"""Inner tests in which rank 1 of 2 is killed by SIGKILL, each in its own phase.

Data for ``test_crash_locator.py``; they follow the prelude of ``crash_examples.py``, and their
marks are read as there.
"""

from __future__ import annotations

PHASES = '''

@pytest.fixture
def killed_in_setup(ddp):  # next setup
    if ddp.rank == 1:
        kill()


@ddp2
def test_setup(killed_in_setup):
    pass


def instead(monkeypatch, module, name):
    """Replace one of torch's inner functions by death, on rank 1."""
    if os.environ["RANK"] == "1":
        monkeypatch.setattr(module, name, lambda *args, **kwargs: kill())


@pytest.mark.ddp(world_size=2, init=False)
def test_init_process_group(ddp, monkeypatch):
    instead(monkeypatch, distributed_c10d, "_new_process_group_helper")
    dist.init_process_group("gloo")  # here init_process_group


@ddp2
def test_new_group(ddp, monkeypatch):
    instead(monkeypatch, distributed_c10d, "_new_process_group_helper")
    dist.new_group([0, 1])  # here new_group


class KilledInConstruction(torch.nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
        if rank == 1:
            kill()


@ddp2
def test_construction(ddp):
    KilledInConstruction(ddp.rank)  # here construction


class KilledWhenMoved(torch.nn.Linear):
    def _apply(self, *args, **kwargs):
        if dist.get_rank() == 1:
            kill()
        return super()._apply(*args, **kwargs)


@ddp2
def test_to(ddp):
    KilledWhenMoved(2, 2).to(ddp.device)  # here to


class KilledWhenWrapped(torch.nn.Linear):
    def named_parameters(self, *args, **kwargs):
        if dist.get_rank() == 1:
            kill()
        return super().named_parameters(*args, **kwargs)


@ddp2
def test_ddp_construction(ddp):
    DistributedDataParallel(KilledWhenWrapped(2, 2))  # here ddp_construction


def kill_rank_1(*args, **kwargs):
    if dist.get_rank() == 1:
        kill()


@ddp2
def test_fsdp_construction(ddp):
    inner = torch.nn.Sequential(torch.nn.Linear(2, 2))
    kwargs = {"auto_wrap_policy": kill_rank_1, "device_id": CPU}
    FullyShardedDataParallel(inner, **kwargs)  # here fsdp_construction


@ddp2
def test_fully_shard(ddp):
    mesh = dist.init_device_mesh("cpu", (2,))
    linear = torch.nn.Linear(2, 2)
    fully_shard(linear, mesh=mesh, shard_placement_fn=kill_rank_1)  # here fully_shard


@ddp2
def test_compilation(ddp):
    def backend(graph, inputs):
        kill_rank_1()
        return graph.forward

    torch.compile(torch.nn.Linear(2, 2), backend=backend)(torch.ones(2))  # here compilation


class KilledInForward(torch.nn.Linear):
    killed_in = 1
    forwards = 0

    def forward(self, x):
        self.forwards += 1
        if self.forwards == self.killed_in:
            kill_rank_1()
        return super().forward(x)


@ddp2
def test_first_forward_of_ddp(ddp):
    model = DistributedDataParallel(KilledInForward(2, 2))
    model(torch.ones(1, 2))  # here first_forward_of_ddp


@ddp2
def test_later_forward_of_ddp(ddp):
    model = DistributedDataParallel(KilledInForward(2, 2))
    model.module.killed_in = 2
    model(torch.ones(1, 2)).sum().backward()
    model(torch.ones(1, 2))  # here later_forward_of_ddp


@ddp2
def test_first_forward_of_fsdp(ddp):
    model = FullyShardedDataParallel(KilledInForward(2, 2), device_id=CPU)
    model(torch.ones(1, 2))  # here first_forward_of_fsdp


@ddp2
def test_first_forward_of_fully_shard(ddp):
    mesh = dist.init_device_mesh("cpu", (2,))
    model = fully_shard(KilledInForward(2, 2), mesh=mesh)
    model(torch.ones(1, 2))  # here first_forward_of_fully_shard


@ddp2
def test_backward(ddp):
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    out = model(torch.ones(1, 2))
    out.register_hook(kill_rank_1)
    out.sum().backward()  # here backward


class KillsInStep(torch.optim.SGD):
    def step(self, closure=None):
        kill_rank_1()


@ddp2
def test_optimizer_step(ddp):
    model = torch.nn.Linear(2, 2)
    KillsInStep(model.parameters(), 0.1).step()  # here optimizer_step


@ddp2
def test_own_phase(ddp):
    with ddp.phase("warm-up"):  # here own_phase
        kill_rank_1()


@ddp2
def test_nested_phases(ddp):
    with ddp.phase("epoch 0"), ddp.phase("validation"):
        DistributedDataParallel(KilledWhenWrapped(2, 2))  # here nested_phases


@pytest.fixture
def killed_in_teardown(ddp):  # next teardown
    yield
    kill_rank_1()


@ddp2
def test_teardown(killed_in_teardown):
    pass
'''

PHASES_SAID = {
    "setup": "setup: fixture killed_in_setup",
    "init_process_group": "call: init_process_group",
    "new_group": "call: new_group",
    "construction": "call: construction of KilledInConstruction",
    "to": "call: KilledWhenMoved.to()",
    "ddp_construction": "call: DDP construction",
    "fsdp_construction": "call: FSDP construction",
    "fully_shard": "call: fully_shard",
    "compilation": "call: compilation",
    "first_forward_of_ddp": "call: first forward of DDP",
    "later_forward_of_ddp": "call: forward of DDP",
    "first_forward_of_fsdp": "call: first forward of FSDP",
    "first_forward_of_fully_shard": "call: first forward under fully_shard",
    "backward": "call: backward",
    "optimizer_step": "call: KillsInStep.step()",
    "own_phase": "call: warm-up",
    "nested_phases": "call: epoch 0: validation: DDP construction",
    "teardown": "teardown: fixture killed_in_teardown",
}
"""The phase of rank 1 when it was killed, as the verdict has it."""
