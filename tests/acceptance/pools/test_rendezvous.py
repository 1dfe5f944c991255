"""Where code under test meets by itself: nobody finds there what a test before has left."""

from __future__ import annotations

from tests.acceptance.suite import LOADFILE, Suite

TESTS = """
    import os
    import threading
    from pathlib import Path

    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2)


    @pytest.fixture(autouse=True)
    def port(request, ddp):
        name = request.node.name.partition("[")[0]
        (Path("ports") / f"{name}-{ddp.rank}").write_text(os.environ["MASTER_PORT"])


    def meet(ddp):
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        dist.barrier()
        assert not store.check(["left"])
        dist.barrier()
        store.set("left", "1")
        ddp.barrier()


    def test_a_quiet(ddp): ...


    def test_b_quiet(ddp): ...


    def test_c_meets(ddp):
        meet(ddp)


    def test_d_meets(ddp):
        meet(ddp)


    def test_e_quiet(ddp): ...


    def test_f_fails(ddp):
        assert ddp.rank


    def test_g_meets(ddp):
        meet(ddp)


    def test_h_serving_rank_dies(ddp):
        if ddp.rank == 0:
            os._exit(0)


    def test_i_meets(ddp):
        meet(ddp)


    def test_j_leaves_a_thread(ddp):
        threading.Thread(target=threading.Event().wait, name="stays", daemon=True).start()


    def test_k_meets(ddp):
        meet(ddp)


    def test_l_quiet(ddp): ...
"""

SAME = [("test_a_quiet", "test_b_quiet", "test_c_meets"), ("test_e_quiet", "test_f_fails")]
"""Tests that have one port: nobody has met by it before the last of them."""


def test_each_meets_by_a_store_of_its_own(suite: Suite) -> None:
    suite.write("test_meetings.py", TESTS)
    (suite.directory / "ports").mkdir()
    run = suite.run(*LOADFILE, timeout=60)
    run.assert_outcomes(passed=10, failed=2)
    assert run["test_f_fails"].verdict == run["test_h_serving_rank_dies"].verdict == "failed"
    ports = {file.name: file.read_text() for file in (suite.directory / "ports").iterdir()}
    for tests in SAME:
        assert len({ports[f"{test}-{rank}"] for test in tests for rank in (0, 1)}) == 1, ports
