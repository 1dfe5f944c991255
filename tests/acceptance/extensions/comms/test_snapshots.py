"""``comms.assert_matches_snapshot``: compared, or with ``--ddp-update-comms`` written."""

from __future__ import annotations

from tests.acceptance.suite import Suite

STEP = """
    import os

    import pytest
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    pytestmark = pytest.mark.ddp(world_size=2)


    def test_step(ddp):
        model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        with ddp.comms(model) as comms:
            model(torch.ones(2, 8)).sum().backward()
            if "METRIC" in os.environ:
                dist.all_reduce(torch.ones(1))
            dist.all_gather_object([None, None], "x" * ddp.rank)
        comms.assert_matches_snapshot()


    def test_ranks_that_differ(ddp):
        with ddp.comms() as comms:
            if ddp.rank == 0:
                dist.send(torch.ones(4), 1)
            else:
                dist.recv(torch.ones(4), 0)
        comms.assert_matches_snapshot("a pair")


    @pytest.mark.skipif("MISSING" not in os.environ, reason="fails")
    def test_on_one_rank(ddp):
        with ddp.comms() as comms:
            pass
        if ddp.rank == 0:
            comms.assert_matches_snapshot()
"""

PAIR = """\
rank 0
  no step
    send 16 B world
rank 1
  no step
    recv 16 B world
"""


def test_a_snapshot_from_its_first_run_to_a_difference(suite: Suite) -> None:
    suite.write("test_train.py", STEP)
    folder = suite.directory / "__comms__" / "test_train"

    missing = suite.run()
    missing.assert_outcomes(failed=2, skipped=1)
    assert "there is no __comms__/test_train/test_step.txt" in missing.flat
    assert not folder.exists()

    suite.run("--ddp-update-comms").assert_outcomes(passed=2, skipped=1)
    written = {file.name: file.read_text() for file in folder.iterdir()}
    assert written.keys() == {"test_step.txt", "test_ranks_that_differ.a-pair.txt"}
    assert written["test_ranks_that_differ.a-pair.txt"].partition("\n")[2] == PAIR
    assert "    5 x (*: all_gather 288 B world)\n" in written["test_step.txt"]
    assert "object" not in written["test_step.txt"]

    changed = suite.run(env={"METRIC": "1", "MISSING": "1"})
    changed.assert_outcomes(passed=1, failed=2)
    text = changed["test_step"].text
    assert "AssertionError: ddp.comms: 1 more all_reduce of 4 B on world, issued at" in text
    assert text.rstrip().endswith("DDP-064: python -m pytest_ddp explain DDP-064")
    assert "test_train.py:20 in test_step" in text
    assert "test_on_one_rank" in changed.output
    assert {file.name: file.read_text() for file in folder.iterdir()} == written

    suite.run("--ddp-update-comms", env={"METRIC": "1"}).assert_outcomes(passed=2, skipped=1)
    suite.run(env={"METRIC": "1"}).assert_outcomes(passed=2, skipped=1)

    assert "no test has the snapshot" not in changed.output
    suite.write("test_train.py", STEP.replace("test_step", "test_renamed"))
    renamed = suite.run("--ddp-update-comms")
    assert [line for line in renamed.stdout.splitlines() if "no test has" in line] == [
        "ddp.comms: no test has the snapshot __comms__/test_train/test_step.txt; delete it"
    ]
    assert "passed without" not in renamed.output

    suite.write("test_train.py", STEP.replace('("a pair")', '("two")'))
    unused = suite.run("--ddp-update-comms")
    assert [line for line in unused.stdout.splitlines() if "passed without" in line] == [
        "ddp.comms: its test passed without the snapshot "
        "__comms__/test_train/test_ranks_that_differ.a-pair.txt; delete it"
    ]
    narrowed = suite.run("--ddp-update-comms", "-k", "step")
    assert "delete it" not in narrowed.output
