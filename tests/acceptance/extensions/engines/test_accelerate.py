"""Accelerate over two machines of two ranks: the loop of its own introduction.

It is no test dependency, with sixteen packages behind it: `make ecosystem` has it, and runs this.
"""

from __future__ import annotations

import pytest

from tests.acceptance.extensions.machines.cluster import Cluster
from tests.acceptance.suite import Suite

pytest.importorskip("accelerate")

LOOP = """
    import os

    import pytest
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    pytestmark = pytest.mark.ddp(world_size=4, init=False, timeout=120)


    def trained(accelerator):
        torch.manual_seed(0)
        model = torch.nn.Linear(1, 1)
        inputs = torch.arange(20.0).unsqueeze(1) / 20
        loader = DataLoader(TensorDataset(inputs, 3 * inputs + 1), batch_size=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for _ in range(3):
            for x, y in loader:
                optimizer.zero_grad()
                accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
                optimizer.step()
        return model, loader


    def test_finds_its_place(ddp):
        accelerator = Accelerator(cpu=True)
        places = ddp.gather(
            [accelerator.num_processes, accelerator.process_index, accelerator.local_process_index]
        )
        assert places == [[4, 0, 0], [4, 1, 1], [4, 2, 0], [4, 3, 1]]
        machines = ddp.gather(os.environ["GROUP_RANK"])
        assert machines == ["0", "0", "1", "1"]


    def test_loop(ddp):
        accelerator = Accelerator(cpu=True)
        model, loader = trained(accelerator)
        weights = [value.tolist() for value in model.state_dict().values()]
        assert ddp.gather(weights) == [weights] * 4
        # Twenty samples are no multiple of eight: the last batch is filled up, and cut again.
        seen = [accelerator.gather_for_metrics(x) for x, _ in loader]
        assert sorted(torch.cat(seen).flatten().mul(20).round().tolist()) == list(range(20))


    def test_says_where_it_is_wrong(ddp):
        accelerator = Accelerator(cpu=True)
        total = accelerator.reduce(torch.ones(1))
        assert total.item() == 4
        assert accelerator.process_index != 3
"""


def test_its_loop_crosses_machines(cluster: Cluster, suite: Suite) -> None:
    suite.write("test_a.py", LOOP)
    session = cluster.run(suite, torchrun=True)
    assert cluster.survivors_after(3) == []
    session.alpha.assert_outcomes(passed=2, failed=1)
    assert "rank 3" in session.alpha["test_says_where_it_is_wrong"].text
    assert session.alpha.returncode == 1, session.text
