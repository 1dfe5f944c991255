"""What a rank sends must be what the other one expects, in dtype and number of elements.

gloo looks at bytes alone: four float32 are four int32 to it, in a collective and in a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite, flat

PRELUDE = """
    import threading
    from functools import partial

    import pytest
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
    ddp2 = pytest.mark.ddp(world_size=2)
    ddp3 = pytest.mark.ddp(world_size=3)
    ones = torch.ones
    WORLD = "0"


    def dtype_of(ddp):
        return torch.float32 if ddp.rank == 0 else torch.int32


    def zeros(*sizes, like=None):
        return [torch.zeros(size, dtype=None if like is None else like.dtype) for size in sizes]
"""

UNLIKE = """
    FORMS = {
        "all_gather": lambda x: dist.all_gather(zeros(4, 4, like=x), x),
        "reduce_scatter": lambda x: dist.reduce_scatter(x.clone(), [x, x]),
        "all_to_all": lambda x: dist.all_to_all(zeros(4, 4, like=x), [x, x]),
        "all_to_all_single": lambda x: dist.all_to_all_single(torch.empty_like(x), x),
        "all_to_all_splits": lambda x: dist.all_to_all_single(x.clone(), x, [2, 2], [2, 2]),
        "all_gather_coalesced": lambda x: dist.all_gather_coalesced([[x], [x]], [x]),
        "all_reduce_coalesced": lambda x: dist.all_reduce_coalesced([x, x]),
    }
    BATCHED = {
        "all_reduce": dist.all_reduce,
        "all_gather": lambda x: dist.all_gather_into_tensor(torch.cat([x, x]), x),
        "reduce_scatter": lambda x: dist.reduce_scatter_tensor(x[::2].clone(), x),
    }


    @ddp2
    @pytest.mark.parametrize("form", FORMS)
    def test_dtype(ddp, form):
        FORMS[form](ones(4, dtype=dtype_of(ddp)))


    @ddp2
    @pytest.mark.parametrize("form", BATCHED)
    def test_dtype_of_many_at_once(ddp, form):
        with dist._coalescing_manager():
            for size in (2, 4):
                BATCHED[form](ones(size, dtype=dtype_of(ddp)))


    FUNCTIONAL = {
        "all_reduce": lambda x: functional.all_reduce(x, "sum", WORLD),
        "all_gather": lambda x: functional.all_gather_tensor(x, 0, WORLD),
        "reduce_scatter": lambda x: functional.reduce_scatter_tensor(x, "sum", 0, WORLD),
        "all_to_all": lambda x: functional.all_to_all_single(x, [2, 2], [2, 2], WORLD),
        "broadcast": lambda x: functional.broadcast(x, 0, WORLD),
        "all_reduce_coalesced": lambda x: functional.all_reduce_coalesced([x, x], "sum", WORLD)[0],
    }


    @ddp2
    @pytest.mark.parametrize("form", FUNCTIONAL)
    def test_functional(ddp, form):
        functional.wait_tensor(FUNCTIONAL[form](ones(4, dtype=dtype_of(ddp))))


    @ddp2
    def test_functional_reduction(ddp):
        functional.all_reduce(ones(4), "sum" if ddp.rank == 0 else "max", WORLD).wait()


    @ddp2
    def test_functional_form_against_the_plain_one(ddp):
        x = ones(4, dtype=dtype_of(ddp))
        if ddp.rank == 0:
            functional.all_gather_tensor(x, 0, WORLD).wait()
        else:
            dist.all_gather([torch.empty_like(x) for _ in range(2)], x)


    @ddp2
    def test_count_of_equal_bytes(ddp):
        x = ones(4) if ddp.rank == 0 else ones(8, dtype=torch.float16)
        dist.all_gather([torch.empty_like(x) for _ in range(2)], x)


    @ddp2
    def test_parts_of_one_length(ddp):
        sizes = (1, 2) if ddp.rank == 0 else (2, 1)
        dist.all_gather_coalesced([zeros(*sizes), zeros(*sizes)], [ones(n) for n in sizes])


    @ddp3
    def test_in_a_subgroup(ddp):
        pair = dist.new_group([0, 2])
        if ddp.rank != 1:
            x = ones(4, dtype=dtype_of(ddp))
            dist.all_gather([torch.empty_like(x) for _ in range(2)], x, group=pair)
"""

UNLIKE_MESSAGES = """
    def exchange(ddp, sent, received, peer=None, **given):
        peer = 1 - ddp.rank if peer is None else peer
        if ddp.rank == 0:
            dist.send(sent, peer, **given)
        else:
            dist.recv(received, peer, **given)


    def begin(ddp, sent, received, tags):
        begin, tensors = (dist.isend, sent) if ddp.rank == 0 else (dist.irecv, received)
        return [begin(x, 1 - ddp.rank, tag=tag) for x, tag in zip(tensors, tags, strict=True)]


    def complete(works):
        for work in works:
            work.wait()


    def batch(sent, received, peer, group=None):
        operations = [(dist.isend, sent), (dist.irecv, received)]
        ops = [dist.P2POp(begin, x, peer, group) for begin, x in operations]
        complete(dist.batch_isend_irecv(ops))


    ints = partial(ones, dtype=torch.int32)
    MESSAGES = {
        "int_into_float": lambda ddp: exchange(ddp, ints(4), ones(4)),
        "float_into_int": lambda ddp: exchange(ddp, ones(4), ints(4)),
        "half_into_bfloat": lambda ddp: exchange(ddp, ones(4).half(), ones(4).bfloat16()),
        "floats_into_double": lambda ddp: exchange(ddp, ones(4), ones(2).double()),
        "bytes_into_flags": lambda ddp: exchange(ddp, ones(4).byte(), ones(4).bool()),
        "complex_into_int": lambda ddp: exchange(ddp, ones(2, dtype=torch.complex64), ints(4)),
        "one_end_in_bytes": lambda ddp: exchange(ddp, ints(4).view(torch.uint8), ints(4)),
        "into_more_room": lambda ddp: exchange(ddp, ints(4), ones(9)),
        "handles": lambda ddp: complete(begin(ddp, [ones(4)], [ints(4)], [3])),
        "tags": lambda ddp: complete(begin(ddp, [ones(4), ints(4)], [ints(4), ones(4)], [1, 2])),
        "batch": lambda ddp: batch(*[ones(4, dtype=dtype_of(ddp)) for _ in range(2)], 1 - ddp.rank),
    }


    @ddp2
    @pytest.mark.parametrize("form", MESSAGES)
    def test_message(ddp, form):
        MESSAGES[form](ddp)


    @ddp2
    def test_message_after_thousands(ddp):
        # More than there are calls whose lines are kept.
        for number in range(2500):
            x = ints(1) if number == 4 and ddp.rank == 0 else ones(1)
            exchange(ddp, x, x)


    @ddp2
    def test_message_by_the_method(ddp):
        group = dist.group.WORLD
        work = group.send([ones(4)], 1, 0) if ddp.rank == 0 else group.recv([ints(4)], 0, 0)
        work.wait()


    @ddp2
    def test_message_of_another_thread(ddp):
        exchange(ddp, ones(4), ones(4))
        thread = threading.Thread(target=exchange, args=(ddp, ones(4), ints(4)))
        thread.start()
        thread.join()


    @ddp3
    @pytest.mark.parametrize("received", [(ints, ints), (ones, ints)], ids=["all", "one"])
    def test_message_from_any(ddp, received):
        if ddp.rank == 0:
            for kind in received:
                dist.recv(kind(4))
        else:
            dist.send(ones(4), 0)


    @ddp3
    def test_message_in_a_subgroup(ddp):
        pair = dist.new_group([0, 2])
        if ddp.rank != 1:
            batch(*[ones(4, dtype=dtype_of(ddp)) for _ in range(2)], 2 - ddp.rank, pair)
"""

LEGAL_MESSAGES = """
    EQUAL = {
        "same": lambda ddp: exchange(ddp, ones(2, 3), ones(3, 2)),
        "both_ends_in_bytes": lambda ddp: exchange(ddp, *[ints(4).view(torch.uint8)] * 2),
        "complex_and_its_parts": lambda ddp: exchange(
            ddp, ones(2, dtype=torch.complex64), ones(2, 2)
        ),
        "parts_and_their_complex": lambda ddp: exchange(
            ddp, ones(2, 2), ones(2, dtype=torch.complex64)
        ),
        "more_room": lambda ddp: exchange(ddp, ones(4), ones(6)),
        "nothing": lambda ddp: exchange(ddp, ones(0), ints(0)),
        "nothing_into_room": lambda ddp: exchange(ddp, ones(0), ints(4)),
        "tags": lambda ddp: complete(
            begin(ddp, [ones(4), ints(4)], [ints(4), ones(4)], [(1, 2), (2, 1)][ddp.rank])
        ),
        "a_dtype_each_way": lambda ddp: batch(
            *[(ones(4), ints(4)), (ints(4), ones(4))][ddp.rank], 1 - ddp.rank
        ),
    }


    @ddp2
    @pytest.mark.parametrize("form", EQUAL)
    def test_equal_ends(ddp, form):
        EQUAL[form](ddp)


    @ddp3
    def test_messages_from_any(ddp):
        for tag, kind in enumerate((ones, ints)):
            if ddp.rank == 0:
                for _ in range(2):
                    dist.recv(kind(4), tag=tag)
            else:
                dist.send(kind(4), 0, tag=tag)


    @ddp2
    def test_threads_with_a_dtype_each(ddp):
        threads = [
            threading.Thread(target=exchange, args=(ddp, kind(4), kind(4)), kwargs={"tag": tag})
            for tag, kind in enumerate((ones, ints))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


    @ddp2
    def test_objects(ddp):
        if ddp.rank == 0:
            dist.send_object_list(["x" * 1000, None], dst=1)
        else:
            got = [None, None]
            dist.recv_object_list(got, src=0)
            assert got == ["x" * 1000, None]


    @ddp2
    def test_refused_message(ddp):
        if ddp.rank == 0:
            with pytest.raises(RuntimeError, match="contiguous"):
                dist.group.WORLD.send([ints(2, 3).t()], 1, 0)
        exchange(ddp, ones(4), ones(4))


    @ddp2
    def test_pipeline(ddp):
        layer = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
        stage = PipelineStage(layer, ddp.rank, 2, torch.device("cpu"))
        schedule = Schedule1F1B(stage, 2, loss_fn=lambda out, target: (out - target).square().sum())
        x = ones(4, 4, dtype=torch.bfloat16)
        schedule.step(x) if ddp.rank == 0 else schedule.step(target=x)
"""

LEGAL = """
    @ddp2
    def test_other_shape(ddp):
        x = ones((2, 3) if ddp.rank == 0 else (3, 2))
        dist.all_gather([torch.empty_like(x) for _ in range(2)], x)
        dist.all_to_all([torch.empty_like(x) for _ in range(2)], [x, x])
        dist.reduce_scatter(torch.empty_like(x), [x, x])


    @ddp3
    def test_uneven_all_to_all(ddp):
        got, sent = torch.zeros(6, 2), ones(3 * (ddp.rank + 1), 2)
        dist.all_to_all_single(got, sent, [1, 2, 3], [ddp.rank + 1] * 3)


    @ddp2
    def test_nothing_for_one(ddp):
        sent, got = ([2, 0], [2, 1]) if ddp.rank == 0 else ([1, 3], [0, 3])
        dist.all_to_all_single(torch.zeros(sum(got)), ones(sum(sent)), got, sent)
        dist.all_to_all_single(torch.zeros(0), ones(0))


    @ddp2
    def test_splits_on_one_rank(ddp):
        splits = [[2, 2], [2, 2]] if ddp.rank == 0 else []
        dist.all_to_all_single(torch.zeros(4), ones(4), *splits)


    @ddp3
    def test_uneven_reduce_scatter(ddp):
        dist.reduce_scatter(torch.zeros(1 + ddp.rank), [ones(1 + rank) for rank in range(3)])


    @ddp2
    def test_forms_of_a_gather(ddp):
        if ddp.rank == 0:
            dist.all_gather(zeros(3, 3), ones(3))
        else:
            dist.all_gather_into_tensor(torch.zeros(6), ones(3))


    @ddp2
    def test_forms_of_a_sum(ddp):
        if ddp.rank == 0:
            dist.all_reduce(ones(3))
        else:
            dist.all_reduce_coalesced([ones(1), ones(2)])


    @ddp2
    def test_many_at_once(ddp):
        with dist._coalescing_manager():
            for size in (1, 2):
                dist.all_gather_into_tensor(torch.zeros(2 * size), ones(size))
        dist.all_gather_coalesced([zeros(1, 2), zeros(1, 2)], [ones(1), ones(2)])


    @ddp2
    def test_functional_forms(ddp):
        if ddp.rank == 0:
            functional.all_reduce(ones(3), "sum", WORLD).wait()
            functional.all_gather_tensor(ones(3), 0, WORLD).wait()
            functional.reduce_scatter_tensor(ones(2, 2), "max", 0, WORLD).wait()
            functional.all_to_all_single(ones(3), [1, 3], [1, 2], WORLD).wait()
        else:
            dist.all_reduce(ones(3))
            dist.all_gather(zeros(3, 3), ones(3))
            dist.reduce_scatter_tensor(torch.zeros(2), ones(4), op=dist.ReduceOp.MAX)
            dist.all_to_all_single(torch.zeros(6), ones(7), [2, 4], [3, 4])
        functional.all_gather_tensor(ones(2, 3) if ddp.rank else ones(3, 2), 0, WORLD).wait()


    @ddp2
    def test_distributed_tensor(ddp):
        mesh = init_device_mesh("cpu", (2,))
        whole = distribute_tensor(torch.arange(10.0).reshape(5, 2), mesh, [Shard(0)]).full_tensor()
        assert whole.shape == (5, 2)


    @ddp2
    def test_compiled(ddp):
        double = torch.compile(
            lambda x: functional.all_reduce(x * 2, "sum", WORLD) + 1, backend="aot_eager"
        )
        for size in (3, 3, 5):
            assert double(ones(size)).tolist() == [5] * size


    @ddp2
    def test_unlike_objects(ddp):
        mine = "x" * 1000 * ddp.rank
        dist.all_gather_object([None, None], mine)
        dist.gather_object(mine, [None, None] if ddp.rank == 0 else None)
        dist.broadcast_object_list([mine], src=1)
        dist.scatter_object_list([None], [mine, 2] if ddp.rank == 1 else [None, None], src=1)


    @ddp3
    def test_uneven_in_a_subgroup(ddp):
        pair = dist.new_group([0, 2])
        if ddp.rank != 1:
            mine = pair.rank() + 1
            got = torch.zeros(3)
            dist.all_to_all_single(got, ones(2 * mine), [1, 2], [mine, mine], group=pair)


    @ddp2
    @pytest.mark.parametrize("ranks", [[0], [0, 1]], ids=["one", "all"])
    def test_refused_on(ddp, ranks):
        if ddp.rank in ranks:
            with pytest.raises(RuntimeError, match="invalid tensor size"):
                dist.all_gather(zeros(5 + ddp.rank, 5), ones(2))
"""

REFUSED = """
    @ddp2
    def test_refused_by_the_backend(ddp):
        dist.all_gather(zeros(1, 2), ones(1 + ddp.rank))


    @ddp2
    def test_next_one_passes(ddp):
        x = ones(1)
        dist.all_reduce(x)
        assert x.item() == 2
"""


SOURCES = {
    "unlike": UNLIKE,
    "legal": LEGAL,
    "messages": f"{UNLIKE_MESSAGES}\n{LEGAL_MESSAGES}",
    "refused": REFUSED,
}


@pytest.fixture(scope="module")
def finished(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    for name, tests in SOURCES.items():
        suite.write(f"test_{name}.py", f"{PRELUDE}\n\n{tests}")
    return suite.run("--ddp-timeout=60", timeout=200)


def results(finished: Finished, source: str) -> dict[str, str]:
    """The message of each test of a source; empty for one that passed."""
    names = re.findall(r"def (test_\w+)", source)
    by_name = {key.rpartition("::")[2]: result for key, result in finished.results.items()}
    found = {n: result for n, result in by_name.items() if n.partition("[")[0] in names}
    assert {name.partition("[")[0] for name in found} == {*names}
    return {
        name: "" if result.verdict == "passed" else flat(result.text)
        for name, result in found.items()
    }


def test_unlike_pieces_are_reported(finished: Finished) -> None:
    for name, text in results(finished, UNLIKE).items():
        assert text.startswith("the ranks differ in collective #1 of the "), (name, text)
        assert " x float" in text, (name, text)
        assert "issued in C++" not in text


def test_unlike_messages_are_reported(finished: Finished) -> None:
    shown = results(finished, UNLIKE_MESSAGES)
    assert all(text.startswith("the ranks differ in ") for text in shown.values()), shown
    assert {name for name, text in shown.items() if "in a message to rank" in text} == {
        "test_message_of_another_thread",
        *("test_message_from_any[all]", "test_message_from_any[one]"),
    }
    assert " in message #5 from rank 0 to rank 1 of " in shown["test_message_after_thousands"]
    assert "to rank 1 (tag 3) of the default group" in shown["test_message[handles]"]
    assert "of the group of ranks 0, 2:" in shown["test_message_in_a_subgroup"]


def test_both_ends_of_a_message_are_shown(finished: Finished) -> None:
    text = flat(finished["test_message[int_into_float]"].text)
    assert "rank 0: send(4 x int32) at test_messages.py:" in text
    assert "rank 1: recv(4 x float32) at test_messages.py:" in text
    assert "gloo compares bytes alone" in text
    assert "DDP-013" in text


def test_both_sides_of_a_dtype_are_shown(finished: Finished) -> None:
    text = flat(finished["test_dtype[all_gather]"].text)
    assert "rank 0: all_gather(4 x float32) at test_unlike.py:" in text
    assert "rank 1: all_gather(4 x int32) at test_unlike.py:" in text


def test_pieces_that_are_expected_are_legal(finished: Finished) -> None:
    for source in (LEGAL, LEGAL_MESSAGES):
        assert {name: text for name, text in results(finished, source).items() if text} == {}


def test_error_of_the_backend_stays(finished: Finished) -> None:
    result = finished["test_refused_by_the_backend"]
    assert result.verdict == "failed"
    assert "ProcessGroupGloo::allgather: invalid tensor size" in result.phase("call").message
    assert "the ranks differ" not in flat(result.text)


def test_next_one_passes(finished: Finished) -> None:
    assert finished["test_next_one_passes"].verdict == "passed"
