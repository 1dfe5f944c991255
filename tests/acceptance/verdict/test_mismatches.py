"""Collectives that contradict each other are proved to, also where one side comes to its end."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite, flat

SOURCE = """
    import pytest
    import torch
    import torch.distributed as dist

    ddp2 = pytest.mark.ddp(world_size=2)
    ddp3 = pytest.mark.ddp(world_size=3)
    ones = torch.ones


    def parts(ddp, root):
        return [ones(1) for _ in range(ddp.world_size)] if ddp.rank == root else None


    @ddp2
    def test_all_reduce(ddp):
        dist.all_reduce(ones(2 + ddp.rank))  # here


    @ddp3
    def test_all_reduce_of_three(ddp):
        dist.all_reduce(ones(2 + ddp.rank))


    @ddp2
    def test_all_reduce_of_many(ddp):
        dist.all_reduce(ones(10**6 * (2 - ddp.rank)))


    @ddp2
    def test_all_reduce_coalesced(ddp):
        dist.all_reduce_coalesced([ones(1), ones(2 + ddp.rank)])


    @ddp3
    def test_reduce(ddp):
        dist.reduce(ones(2 + ddp.rank), 0)


    @ddp2
    def test_reduce_scatter(ddp):
        dist.reduce_scatter(ones(2 + ddp.rank), [ones(2 + ddp.rank)] * 2)


    @ddp2
    def test_one_side_goes_on(ddp):
        dist.all_reduce(ones(2 + ddp.rank))
        dist.barrier()


    @ddp2
    def test_one_side_goes_on_to_an_exchange(ddp):
        dist.all_reduce(ones(2 + ddp.rank))
        ddp.barrier()


    @ddp2
    def test_one_side_waits_late(ddp):
        works = [dist.all_reduce(ones(2 + (n == 0) * ddp.rank), async_op=True) for n in range(9)]
        for work in works:
            work.wait()


    @pytest.mark.parametrize("roots", ["own", "next", "one"])
    @pytest.mark.parametrize("operation", ["broadcast", "reduce", "scatter", "gather"])
    @ddp2
    def test_roots(ddp, operation, roots):
        root = {"own": ddp.rank, "next": 1 - ddp.rank, "one": 0 if ddp.rank else 1}[roots]
        if operation == "scatter":
            dist.scatter(ones(1), parts(ddp, root), root)
        elif operation == "gather":
            dist.gather(ones(1), parts(ddp, root), root)
        else:
            getattr(dist, operation)(ones(1), root)


    @ddp3
    def test_roots_in_a_subgroup(ddp):
        pair = dist.new_group([0, 2])
        if ddp.rank != 1:
            dist.broadcast(ones(1), ddp.rank, group=pair)


    @ddp2
    @pytest.mark.parametrize("form", ["broadcast", "scatter", "gather"])
    def test_roots_of_objects(ddp, form):
        if form == "broadcast":
            dist.broadcast_object_list([1], 1 - ddp.rank)
        elif form == "scatter":
            dist.scatter_object_list([None], [1, 2], ddp.rank)
        else:
            dist.gather_object(1, [None, None], ddp.rank)


    @ddp3
    def test_next_one_passes(ddp):
        tensor = ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 3
"""

LEGAL = """
    import time
    from datetime import timedelta

    import pytest
    import torch
    import torch.distributed as dist

    ddp3 = pytest.mark.ddp(world_size=3)
    ones = torch.ones
    LONG = 3  # seconds
    SHORT = timedelta(seconds=1.5)


    def late(ddp, rank=2):
        if ddp.rank == rank:
            time.sleep(LONG)


    @ddp3
    def test_root_brings_less_than_others_have_room_for(ddp):
        late(ddp, 0)
        tensor = torch.zeros(3) if ddp.rank == 1 else ones(2) if ddp.rank == 0 else torch.zeros(2)
        dist.broadcast(tensor, 0)
        assert tensor[:2].tolist() == [1, 1]


    @ddp3
    def test_forms_of_one_operation(ddp):
        late(ddp)
        tensor = ones(2)
        if ddp.rank:
            dist.all_reduce(tensor)
        else:
            dist.all_reduce_coalesced([tensor[:1], tensor[1:]])
        assert tensor.tolist() == [3, 3]
        late(ddp)
        if ddp.rank:
            gathered = torch.zeros(6)
            dist.all_gather_into_tensor(gathered, ones(2))
        else:
            parts = [torch.zeros(2) for _ in range(3)]
            dist.all_gather(parts, ones(2))
            gathered = torch.cat(parts)
        assert gathered.tolist() == [1] * 6


    @ddp3
    def test_uneven_all_to_all(ddp):
        late(ddp)
        got = torch.zeros(6)
        sent = torch.full((3 * (ddp.rank + 1),), float(ddp.rank))
        dist.all_to_all_single(got, sent, [1, 2, 3], [ddp.rank + 1] * 3)
        assert got.tolist() == [0, 1, 1, 2, 2, 2]


    @ddp3
    def test_uneven_reduce_scatter(ddp):
        late(ddp)
        got = torch.zeros(1 + ddp.rank)
        dist.reduce_scatter(got, [ones(1 + rank) for rank in range(3)])
        assert got.tolist() == [3] * (1 + ddp.rank)


    @ddp3
    def test_collectives_after_uneven_messages(ddp):
        for _ in range(2):
            dist.broadcast(ones(2), 0)
            dist.reduce(ones(3), 1)
            if ddp.rank == 0:
                dist.send(ones(1), 1)
                dist.send(ones(1), 2)
            else:
                dist.recv(ones(1), 0)
            dist.monitored_barrier()
            late(ddp)
            dist.all_reduce(ones(4))


    @ddp3
    def test_many_collectives_ahead(ddp):
        works = [dist.broadcast(ones(n + 1), n % 3, async_op=True) for n in range(40)]
        late(ddp)
        for work in works:
            work.wait()


    @ddp3
    def test_one_rank_closes_the_group_and_the_other_is_shown(ddp):
        pair = dist.new_group([0, 1])
        if ddp.rank == 0:
            dist.all_reduce(ones(2), group=pair)  # which gloo takes for all there is
            time.sleep(LONG)
            dist.destroy_process_group(pair)
        elif ddp.rank == 1:
            with pytest.raises(RuntimeError):
                dist.all_reduce(ones(3), group=pair)


    @ddp3
    def test_timeout_of_the_group(ddp):
        group = dist.new_group(timeout=SHORT)
        with pytest.raises(RuntimeError):
            dist.broadcast(ones(1), ddp.rank, group=group)
"""

WAITS = {
    "all_reduce": "rank 1 waits in all_reduce #1 (3 x float32) of the default group, "
    "rank 0 is done with all_reduce #1 (2 x float32)",
    "reduce": "rank 1 waits in reduce #1 (3 x float32, root 0) of the default group, "
    "rank 0 is done with reduce #1 (2 x float32, root 0)",
    "one_side_goes_on_to_an_exchange": "rank 1 waits in all_reduce #1 (3 x float32) of the "
    "default group, rank 0 is done with all_reduce #1 (2 x float32)",
    "roots_in_a_subgroup": "rank 0 waits in broadcast #1 (1 x float32, root 0) of the group of "
    "ranks 0, 2, rank 2 in broadcast #1 (1 x float32, root 2)",
}


@pytest.fixture(scope="module")
def mismatches(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_mismatch.py", SOURCE)
    return suite.run(timeout=120)


@pytest.fixture(scope="module")
def legal(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_legal.py", LEGAL)
    return suite.run("-oddp_check_collectives=off", timeout=120)


@pytest.mark.parametrize(
    "name", [n for n in re.findall(r"def test_(\w+)", SOURCE) if n != "next_one_passes"]
)
def test_mismatch_is_proved_at_once(mismatches: Finished, name: str) -> None:
    found = [result for key, result in mismatches.results.items() if f"::test_{name}" in f"::{key}"]
    assert found
    for result in found:
        assert result.verdict == "failed"
        assert "timed out after" not in result.text, "left to the deadline"


@pytest.mark.parametrize("name", WAITS)
def test_both_sides_are_shown(mismatches: Finished, name: str) -> None:
    text = flat(mismatches[f"test_{name}"].text)
    assert text.startswith(f"mismatch: {WAITS[name]}")


def test_places_and_roots_of_all_are_shown(mismatches: Finished) -> None:
    text = flat(mismatches["test_roots_in_a_subgroup"].text)
    assert "rank 0: broadcast(1 x float32, root 0)" in text
    assert "rank 2: broadcast(1 x float32, root 2)" in text


def test_next_one_passes(mismatches: Finished) -> None:
    assert mismatches["test_next_one_passes"].verdict == "passed"


@pytest.mark.parametrize("name", re.findall(r"def test_(\w+)", LEGAL))
def test_wait_that_can_still_end_is_left_to_it(legal: Finished, name: str) -> None:
    result = legal[f"test_{name}"]
    assert result.verdict == "passed", result.text
