"""A rank in ``ddp.gather`` and its kin that waits for ranks in collectives: a proved hang."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite

SOURCE = """
    import pytest
    import torch
    import torch.distributed as dist

    ddp2 = pytest.mark.ddp(world_size=2)
    ddp3 = pytest.mark.ddp(world_size=3)


    def exchange(ddp, operation):
        getattr(ddp, operation)(*([] if operation == "barrier" else [ddp.rank]))


    @ddp2
    def test_gather_against_second_barrier(ddp):
        dist.barrier()
        if ddp.rank == 0:
            ddp.gather("loss")  # here 0
        else:
            dist.barrier()  # here 1


    @ddp2
    @pytest.mark.parametrize("operation", ["barrier", "gather", "broadcast"])
    def test_collective_against(ddp, operation):
        ddp.barrier()
        if ddp.rank == 0:
            dist.all_reduce(torch.ones(2))
        else:
            exchange(ddp, operation)


    @ddp2
    @pytest.mark.parametrize("operation", ["barrier", "gather", "broadcast"])
    def test_against_receive(ddp, operation):
        if ddp.rank == 0:
            exchange(ddp, operation)
        else:
            dist.recv(torch.ones(1), src=0)


    @ddp3
    @pytest.mark.parametrize("operation", ["barrier", "gather", "broadcast"])
    @pytest.mark.parametrize("rank", [0, 2])
    def test_one_of_three(ddp, operation, rank):
        if ddp.rank == rank:
            exchange(ddp, operation)
        else:
            dist.barrier()


    @ddp3
    def test_two_of_three(ddp):
        if ddp.rank == 1:
            dist.recv(torch.ones(1), src=2)
        else:
            ddp.gather(None)


    @ddp3
    def test_one_of_a_subgroup(ddp):
        pair = dist.new_group([0, 1])
        if ddp.rank == 0:
            dist.all_reduce(torch.ones(1), group=pair)
        else:
            ddp.barrier()


    @ddp2
    def test_barrier_against_gather(ddp):
        exchange(ddp, ["barrier", "gather"][ddp.rank])


    @ddp3
    def test_unlike_exchanges_and_a_collective(ddp):
        [ddp.barrier, lambda: ddp.gather(None), dist.barrier][ddp.rank]()


    @ddp2
    def test_in_teardown(ddp, ends_in_exchange):
        pass


    @pytest.fixture
    def ends_in_exchange(ddp):
        yield
        ddp.barrier() if ddp.rank == 0 else dist.barrier()


    @ddp2
    def test_rank_that_ended_is_an_error_to_handle(ddp):
        if ddp.rank == 0:
            with pytest.raises(RuntimeError, match="rank 1 has ended the test"):
                ddp.gather(None)


    @ddp2
    def test_next_one_passes(ddp):
        assert ddp.gather(ddp.rank) == [0, 1]
        dist.barrier()
"""

OPERATIONS = ("barrier", "gather", "broadcast")
VERDICTS = {
    "gather_against_second_barrier": "deadlock: rank 0 waits in ddp.gather #1, rank 1 in "
    "barrier #2 of the default group",
    **{
        f"collective_against[{name}]": "deadlock: rank 0 waits in all_reduce #1 of the default "
        f"group, rank 1 in ddp.{name} #2"
        for name in OPERATIONS
    },
    **{
        f"against_receive[{name}]": f"deadlock: rank 0 waits in ddp.{name} #1, rank 1 in recv #1 "
        "from rank 0 (tag 0)"
        for name in OPERATIONS
    },
    **{
        f"one_of_three[0-{name}]": f"deadlock: rank 0 waits in ddp.{name} #1, rank 1 in "
        "barrier #1 of the default group"
        for name in OPERATIONS
    },
    **{
        f"one_of_three[2-{name}]": "deadlock: rank 0 waits in barrier #1 of the default group, "
        f"rank 2 in ddp.{name} #1"
        for name in OPERATIONS
    },
    "two_of_three": "deadlock: rank 0 waits in ddp.gather #1, rank 1 in recv #1 from rank 2",
    "one_of_a_subgroup": "deadlock: rank 0 waits in all_reduce #1 of the group of ranks 0, 1, "
    "rank 1 in ddp.barrier #1",
}


@pytest.fixture(scope="module")
def suite_of_hangs(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("test_hang.py", SOURCE)
    return suite


@pytest.fixture(scope="module")
def hangs(suite_of_hangs: Suite) -> Finished:
    return suite_of_hangs.run("--ddp-diagnosis=diagnoses", timeout=90)


@pytest.mark.parametrize("name", VERDICTS)
def test_hang_is_proved(hangs: Finished, name: str) -> None:
    result = hangs[f"test_{name}"]
    assert result.verdict == "failed"
    assert VERDICTS[name] in " ".join(result.text.split())


def test_table_shows_where_every_rank_waits(hangs: Finished) -> None:
    text = hangs["test_gather_against_second_barrier"].text
    lines = [line.split() for line in text.splitlines()]
    assert ["rank", "0", "waits", "call", "ddp.gather", "#1"] in [line[:6] for line in lines]
    source = SOURCE.splitlines()
    for mark in ("# here 0", "# here 1"):
        number = next(n for n, line in enumerate(source, 1) if mark in line)
        assert f"test_hang.py:{number}" in text


def test_diagnosis_file_names_the_exchange(suite_of_hangs: Suite, hangs: Finished) -> None:
    assert hangs["test_gather_against_second_barrier"].verdict == "failed"
    (file,) = (suite_of_hangs.directory / "diagnoses").glob("*gather_against_second*")
    (failure,) = json.loads(file.read_text())["failures"]
    assert failure["kind"] == "deadlock"
    gather, barrier = failure["ranks"]
    assert (gather["state"], gather["collective"]) == ("waits", "ddp.gather #1")
    assert (gather["group"], gather["number"]) == ("ddp", 1)
    assert gather["function"] == "test_gather_against_second_barrier"
    assert (barrier["group"], barrier["number"]) == ("0", 2)


def test_unlike_exchanges_are_reported_by_the_controller(hangs: Finished) -> None:
    for name in ("barrier_against_gather", "unlike_exchanges_and_a_collective"):
        result = hangs[f"test_{name}"]
        assert result.verdict == "failed"
        words = "the ranks are in different operations: rank 0 is in ddp.barrier() #1"
        assert words in " ".join(result.text.split())


def test_hang_in_teardown_is_an_error(hangs: Finished) -> None:
    result = hangs["test_in_teardown"]
    assert result.verdict == "passed+error"
    assert "deadlock: rank 0 waits in ddp.barrier #1, rank 1" in " ".join(result.text.split())


@pytest.mark.parametrize("name", ["rank_that_ended_is_an_error_to_handle", "next_one_passes"])
def test_others_pass(hangs: Finished, name: str) -> None:
    assert hangs[f"test_{name}"].verdict == "passed"
