"""Hangs of training code, and ranks that leave while others wait; see also ``test_hangs.py``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite

SOURCE = """
    import os
    import time

    import pytest
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    ddp2 = pytest.mark.ddp(world_size=2)
    ddp4 = pytest.mark.ddp(world_size=4)
    ones = torch.ones


    def fit(folder, keys):
        from lightning.pytorch import Trainer
        from lightning.pytorch.demos.boring_classes import BoringModel

        class Logs(BoringModel):
            def on_validation_epoch_end(self):
                self.log_dict(dict.fromkeys(keys, 1.0), sync_dist=True)

        trainer = Trainer(
            accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, limit_train_batches=1,
            limit_val_batches=1, num_sanity_val_steps=0, default_root_dir=folder, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )
        trainer.fit(Logs())
        return {*trainer.callback_metrics}


    @ddp2
    def test_fsdp_state_dict(ddp):
        device = torch.device("cpu")
        model = FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=device)
        if ddp.rank == 0:
            with model.state_dict_type(model, StateDictType.FULL_STATE_DICT):
                model.state_dict()  # here


    @ddp2
    def test_fully_shard_state_dict(ddp):
        model = fully_shard(torch.nn.Linear(4, 4), mesh=dist.init_device_mesh("cpu", (2,)))
        if ddp.rank == 0:
            options = StateDictOptions(full_state_dict=True)
            get_model_state_dict(model, options=options)  # here


    @ddp2
    def test_first_forward_skipped(ddp):
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        if ddp.rank == 0:
            model(ones(1, 2)).sum().backward()  # here


    @ddp2
    def test_second_forward_skipped(ddp):
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        for step in range(2):
            if ddp.rank == 1 and step == 1:
                continue
            model(ones(1, 2)).sum().backward()  # here


    @ddp2
    def test_third_forward_skipped(ddp):
        # The buckets are settled by then, so that the backward itself is what waits.
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        for step in range(3):
            if ddp.rank == 1 and step == 2:
                continue
            model(ones(1, 2)).sum().backward()  # here
        dist.barrier()  # other


    @ddp4
    def test_subgroup_while_another_works(ddp):
        first, second = dist.new_group([0, 1]), dist.new_group([2, 3])
        if ddp.rank == 0:
            dist.all_reduce(ones(2), group=first)  # here
        elif ddp.rank == 1:
            dist.barrier(group=first)  # other
        else:
            end = time.monotonic() + 30
            while time.monotonic() < end:
                dist.all_reduce(ones(2), group=second)


    @ddp2
    def test_shapes(ddp):
        dist.all_reduce(ones(4 + ddp.rank))  # here


    @ddp2
    def test_raises_early(ddp):
        if ddp.rank == 1:
            raise ValueError("early")  # here
        dist.all_reduce(ones(1))  # other


    @ddp2
    def test_dies_early(ddp):
        if ddp.rank == 1:
            os._exit(3)  # here
        dist.all_reduce(ones(1))  # other


    @ddp2
    def test_log_dict_of_unlike_sizes(ddp, tmp_path):
        fit(tmp_path, ["cat", "dog", "eel"][:2 + ddp.rank])  # here


    @ddp2
    def test_log_dict_of_equal_sizes(ddp, tmp_path):
        assert fit(tmp_path, ["cat", "dog"]) == {"cat", "dog"}


    @ddp2
    def test_next_one_passes(ddp):
        total = ones(1)
        dist.all_reduce(total)
        assert total.item() == 2
"""

VERDICTS = {
    "fsdp_state_dict": "deadlock: rank 0 waits in all_gather #1 of the default group, rank 1 has",
    "fully_shard_state_dict": "deadlock: rank 0 waits in all_gather_into_tensor #1 of the default "
    "group, rank 1 has ended",
    "first_forward_skipped": "deadlock: rank 0 waits in all_reduce #",
    "second_forward_skipped": "deadlock: rank 0 waits in broadcast #",
    "third_forward_skipped": "mismatch: rank 0 waits in all_reduce #",
    "subgroup_while_another_works": "mismatch: rank 0 waits in all_reduce #1 of the group of "
    "ranks 0, 1, rank 1 in barrier #1",
    "log_dict_of_unlike_sizes": "deadlock: rank 1 waits in barrier #",
    "shapes": "rank 0 died of SIGABRT in call",
    "raises_early": "rank 1: ValueError: early",
    "dies_early": "rank 1 exited with code 3 before reporting call",
}


@pytest.fixture(scope="module")
def hangs(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_training.py", SOURCE)
    return suite.run(timeout=120)


def places(name: str) -> set[str]:
    """The marked lines of an inner test, as the text has them."""
    lines = SOURCE.splitlines()
    begin = next(number for number, line in enumerate(lines) if f"def test_{name}(" in line)
    found = set()
    for number, line in enumerate(lines[begin + 1 :], begin + 2):
        if line.startswith("    @"):
            break
        if line.endswith(("# here", "# other")):
            found.add(f"test_training.py:{number}")
    return found


@pytest.mark.parametrize("name", VERDICTS)
def test_hang_is_proved_or_its_cause_named(hangs: Finished, name: str) -> None:
    result = hangs[f"test_{name}"]
    message = result.phase("call").message
    if name == "shapes":  # either rank may be the first to see it
        message = message.replace("rank 1 died", "rank 0 died")
    assert result.verdict == "failed"
    assert message.startswith(VERDICTS[name])
    assert all(place in result.text for place in places(name))
    assert "timed out after" not in result.text


def test_what_a_library_did_is_shown(hangs: Finished) -> None:
    """Lightning reduces what was logged when the loop is over, far from ``log_dict``."""
    text = hangs["test_log_dict_of_unlike_sizes"].text
    stack = text.partition("most recent call first:\n")[2].partition("\n> ")[0].splitlines()
    assert stack[0].endswith(" in barrier")
    assert any("logger_connector/result.py:" in line and " in compute" in line for line in stack)
    assert stack[-2].endswith(" in fit")
    assert stack[-1].endswith(" more calls in libraries, between these")
    assert len(stack) == 8
    assert max(map(len, stack)) <= 100


@pytest.mark.parametrize("name", ["next_one_passes", "log_dict_of_equal_sizes"])
def test_legal_program_passes(hangs: Finished, name: str) -> None:
    assert hangs[f"test_{name}"].verdict == "passed", hangs[f"test_{name}"].text
