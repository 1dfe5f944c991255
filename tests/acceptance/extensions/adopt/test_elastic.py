"""``--ddp-adopt=spawn``: functions that torch's ``elastic_launch`` starts."""

from __future__ import annotations

from tests.acceptance.suite import Suite

PRELUDE = """
import os
import sys
import threading
import time
import uuid

import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher import LaunchConfig, elastic_launch


def launch(function, *args, max_restarts=0):
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, run_id=str(uuid.uuid4()),
        rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=max_restarts,
    )
    return elastic_launch(config, entrypoint=function)(*args)


def add(expected):
    assert "pytest_ddp.extensions.adopt.ranks.served_process" in sys.modules
    dist.init_process_group("gloo")
    total = torch.tensor(dist.get_rank())
    dist.all_reduce(total)
    assert total == expected
    dist.destroy_process_group()
    return os.environ["LOCAL_RANK"]

"""
LEGAL = """
def test_sum():
    assert launch(add, 1) == {0: "0", 1: "1"}


def test_an_error_that_is_expected():
    with pytest.raises(ChildFailedError):
        launch(add, 2)


def restarted():
    if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) == 0:
        sys.exit(3)
    return add(1)


def test_a_restart():
    assert launch(restarted, max_restarts=1) == {0: "0", 1: "1"}


def one_leaves():
    if os.environ["RANK"] == "1":
        sys.exit(0)


def test_an_exit_that_elastic_takes_for_a_return():
    launch(one_leaves)


def one_is_done_early():
    # Its part is begun, and it waits for the other's end.
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        time.sleep(1.5)
    work = dist.barrier(async_op=True)
    if dist.get_rank() == 0:
        work.wait()


def test_one_that_is_done_early():
    launch(one_is_done_early)


def a_thread_comes_late():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        dist.barrier()
    else:
        threading.Timer(1.5, dist.barrier).start()


def test_a_thread_that_outlives_its_function():
    launch(a_thread_comes_late)
"""
LIES = """
def test_red():
    launch(add, 2)


def one_exits():
    dist.init_process_group("gloo")
    dist.barrier()  # gloo connects in the background: else rank 0 may fail by itself
    if dist.get_rank() == 1:
        os._exit(0)


def test_exits():
    launch(one_exits)


def one_hangs():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        dist.barrier()


def test_hangs():
    launch(one_hangs)


def test_hangs_where_an_error_is_expected():
    with pytest.raises(ChildFailedError):
        launch(one_hangs)
"""


def test_functions_are_served(suite: Suite) -> None:
    suite.write("test_it.py", PRELUDE + LEGAL)
    suite.run("--ddp-adopt=spawn", timeout=200).assert_outcomes(passed=6)


def test_what_elastic_waits_for_for_ever(suite: Suite) -> None:
    suite.write("test_it.py", PRELUDE + LIES)
    found = suite.run("--ddp-adopt=spawn", timeout=200)
    found.assert_outcomes(failed=4)
    said = "Captured processes call"
    early = found["test_exits"].sections[said]
    assert "exited with code 0 before its target had returned" in early
    assert "process 0" not in early, "it is ended because of the other"
    proof = "rank 0 waits in barrier #1 of the default group, rank 1 has ended the test without it"
    for text in (
        found["test_hangs"].sections[said],
        found["test_hangs_where_an_error_is_expected"].text,
    ):
        assert proof in text
        assert "in one_hangs" in text
