"""Sends and receives that a test does not finish are named, and do not reach the next test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import LOADFILE, UNDER_XDIST, Finished, Suite, flat

PRELUDE = """
    import datetime
    import os
    import threading

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2, timeout=60)
    KEPT = []


    def seven():
        return torch.full((4,), 7.0)


    def functional():
        import warnings

        import torch.distributed._functional_collectives as functional

        warnings.simplefilter("ignore")
        return functional


    def room():
        return torch.zeros(4)


    def is_right(ddp):
        for tag in (0, 3):
            there = [dist.isend(torch.full((4,), 10.0 + ddp.rank), 1 - ddp.rank, tag=tag)]
            got = room()
            dist.recv(got, None if tag else 1 - ddp.rank, tag=tag)
            there[0].wait()
            assert got.tolist() == [11.0 - ddp.rank] * 4
        dist.all_reduce(got)
        assert got.tolist() == [21.0] * 4


    def receive(source=0, tag=0):
        got = room()
        dist.recv(got, source, tag=tag)
        assert got.tolist() == [7.0] * 4
"""

AFTER = """
    def test_after_{name}(ddp):
        is_right(ddp)
"""

LEFT = {
    "send": ("if ddp.rank == 0: KEPT.append(dist.isend(seven(), 1))", ["a send without a receive"]),
    "dropped_send": ("if ddp.rank == 0: dist.isend(seven(), 1)", ["(rank 0 to rank 1, test_l"]),
    "receive": (
        "if ddp.rank == 0: KEPT.append(dist.irecv(room(), 1))",
        ["a receive without a send behind (rank 0 from rank 1, test_left.py:"],
    ),
    "dropped_receive": (
        "if ddp.rank == 0: dist.irecv(room(), 1)",
        ["a receive without a send"],
    ),
    "receive_from_any": (
        "if ddp.rank == 1: KEPT.append(dist.irecv(room(), tag=5))",
        ["a receive without a send behind (rank 1 from any rank, tag 5, test_left.py:"],
    ),
    "batch": (
        "ops = [dist.P2POp(dist.isend, seven(), 1 - ddp.rank)]\n"
        "        ops += [dist.P2POp(dist.irecv, room(), 0)] if ddp.rank else []\n"
        "        KEPT.extend(dist.batch_isend_irecv(ops))",
        ["a send without a receive behind (rank 1 to rank 0, test_left.py:"],
    ),
    "other_tag": (
        "KEPT.append(dist.isend(seven(), 1, tag=1) if ddp.rank == 0 else"
        " dist.irecv(room(), 0, tag=2))",
        [
            "a send without a receive behind (rank 0 to rank 1, tag 1",
            "a receive without a send behind (rank 1 from rank 0, tag 2",
        ],
    ),
    "one_more": (
        "KEPT.extend(dist.isend(seven(), 1) for _ in range(3)) if ddp.rank == 0 else receive()",
        ["left 2 sends without a receive behind (rank 0 to rank 1"],
    ),
    "both_ways": (
        "KEPT.append(dist.isend(seven(), 1 - ddp.rank))",
        ["left 2 sends without a receive behind (rank 0 to rank 1", "; rank 1 to rank 0"],
    ),
    "first_half_of_objects": (
        "if ddp.rank == 0: KEPT.append(dist.isend(torch.ones(1, dtype=torch.long), 1))",
        ["a send without a receive"],
    ),
    "by_a_method": (
        "if ddp.rank == 0: KEPT.append(dist.group.WORLD.send([seven()], 1, tag=4))",
        ["a send without a receive behind (rank 0 to rank 1, tag 4"],
    ),
}
"""Name: what a test leaves, words of the warnings."""

CUT_OFF = {
    "raises": ("KEPT.append(dist.isend(seven(), 1 - ddp.rank)); assert False", "failed"),
    "one_raises": (
        "assert ddp.rank == 0\n        KEPT.append(dist.isend(seven(), 1))",
        "failed",
    ),
    "is_skipped": ("KEPT.append(dist.irecv(room(), 1 - ddp.rank)); pytest.skip('so')", "skipped"),
    "xfails": ("KEPT.append(dist.irecv(room(), 1 - ddp.rank)); pytest.xfail('so')", "xfailed"),
    "half_of_an_object": (
        "x = torch.ones(1, dtype=torch.long)\n"
        "        if ddp.rank == 0: dist.broadcast_object_list(['seven'], 0)\n"
        "        else: dist.broadcast(x, 0)",
        "failed",
    ),
    "functional": (
        # Each holds one of gloo's two threads for ever.
        "fc = functional()\n"
        "        for _ in range(2):\n"
        "            if ddp.rank == 0: fc.all_reduce(seven(), 'sum', dist.group.WORLD)\n"
        "            else: fc.all_gather_tensor(seven(), 0, dist.group.WORLD)",
        "failed",
    ),
}
"""Code that leaves something else, and its verdict, which is enough or all that is known, by
name."""

LEGAL = {
    "begun_on_both_sides": (
        "KEPT.append(dist.isend(seven(), 1) if ddp.rank == 0 else dist.irecv(room(), 0))"
    ),
    "send_is_not_waited_for": (
        "KEPT.append(dist.isend(seven(), 1)) if ddp.rank == 0 else receive()"
    ),
    "dropped_when_complete": (
        "work = dist.isend(seven(), 1) if ddp.rank == 0 else receive()\n"
        "        ddp.barrier()\n"
        "        del work"
    ),
    "from_any": "dist.send(seven(), 1, tag=2) if ddp.rank == 0 else receive(None, tag=2)",
    "methods": (
        "dist.group.WORLD.send(tensors=[seven()], dstRank=1, tag=0).wait() if ddp.rank == 0"
        " else dist.group.WORLD.recv([room()], srcRank=0, tag=0).wait()"
    ),
    "refused": (
        "if ddp.rank == 0:\n"
        "            for wrong in (torch.zeros(4, 4).t(), torch.zeros(4).to_sparse()):\n"
        "                with pytest.raises(RuntimeError): dist.send(wrong, 1)\n"
        "                with pytest.raises(RuntimeError): dist.irecv(wrong, 1)"
    ),
    "timed_out": (
        "if ddp.rank == 0:\n"
        "            with pytest.raises(RuntimeError):\n"
        "                dist.irecv(room(), 1).wait(datetime.timedelta(milliseconds=50))"
    ),
    "group_of_its_own": (
        "group = dist.new_group([0, 1])\n"
        "        if ddp.rank == 0: KEPT.append(dist.isend(seven(), 1, group=group))\n"
        "        dist.barrier()\n"
        "        dist.destroy_process_group(group)"
    ),
    "objects": (
        "dist.send_object_list(['seven'], 1) if ddp.rank == 0 else dist.recv_object_list([None], 0)"
    ),
    "threads": (
        "def send(tag):\n"
        "            for _ in range(20): dist.isend(seven(), 1, tag=tag).wait()\n"
        "        threads = [threading.Thread(target=send, args=(t,)) for t in (1, 2, 3)]\n"
        "        if ddp.rank == 0:\n"
        "            for t in threads: t.start()\n"
        "            for t in threads: t.join()\n"
        "        else:\n"
        "            for _ in range(20): [receive(tag=t) for t in (3, 2, 1)]"
    ),
    "functional_not_waited_for": ("functional().all_reduce(seven(), 'sum', dist.group.WORLD)"),
    "collective_not_waited_for": "KEPT.append(dist.all_reduce(seven(), async_op=True))",
}
"""Name: what is finished, or can reach nobody."""


def suite_of(bodies: dict[str, str]) -> str:
    return "".join(
        f"""
    def test_{name}(ddp):
        {body}
{AFTER.format(name=name)}"""
        for name, body in bodies.items()
    )


FAKE = """
    @pytest.mark.ddp(world_size=2, backend="fake")
    def test_fake(ddp):
        if ddp.rank == 0:
            dist.isend(seven(), 1)
"""

WIDE = (
    PRELUDE
    + """
    @pytest.fixture(scope="class")
    def inflight(ddp):
        got = room()
        yield got, dist.irecv(got, 1) if ddp.rank == 0 else None


    class TestInflight:
        def test_one(self, ddp, inflight):
            pass

        def test_two(self, ddp, inflight):
            got, work = inflight
            if ddp.rank == 1:
                dist.send(seven(), 0)
            else:
                work.wait()
                assert got.tolist() == [7.0] * 4

        def test_three(self, ddp, inflight):
            is_right(ddp)


    class Prefetched:
        def __init__(self, rank):
            self.rank = rank
            self.begin()

        def begin(self):
            self.got = room()
            self.work = dist.irecv(self.got, 1) if self.rank == 0 else None

        def step(self):
            if self.rank == 1:
                dist.send(seven(), 0)
            else:
                self.work.wait()
                assert self.got.tolist() == [7.0] * 4
            self.begin()


    @pytest.fixture(scope="class")
    def prefetched(ddp):
        prefetched = Prefetched(ddp.rank)
        yield prefetched
        prefetched.begin = lambda: None
        prefetched.step()


    class TestPrefetched:
        @pytest.mark.parametrize("time", [1, 2, 3])
        def test_step(self, prefetched, time):
            prefetched.step()
            prefetched.step()


    @pytest.fixture(scope="class")
    def heart(ddp):
        stopped, group = threading.Event(), dist.new_group([0, 1])

        def beat():
            last = torch.zeros(1)
            while not last:
                if ddp.rank == 0:
                    last.fill_(stopped.is_set())
                    dist.send(last, 1, group=group)
                else:
                    dist.recv(last, 0, group=group)

        thread = threading.Thread(target=beat)
        thread.start()
        yield
        stopped.set()
        thread.join()
        dist.destroy_process_group(group)


    class TestHeart:
        @pytest.mark.parametrize("time", [1, 2, 3])
        def test_beats(self, ddp, heart, time):
            is_right(ddp)


    def test_heart_is_gone(ddp):
        is_right(ddp)


    @pytest.fixture(scope="class")
    def model(ddp):
        dist.all_reduce(torch.ones(1))
        return os.getpid()


    class TestKept:
        def test_leaves(self, ddp, model):
            if ddp.rank == 0:
                KEPT.append(dist.isend(seven(), 1, tag=8))

        def test_says_no_more(self, ddp, model):
            assert os.getpid() == model
            is_right(ddp)


    @pytest.fixture(scope="class")
    def forgotten(ddp):
        KEPT.append(dist.isend(seven(), 1) if ddp.rank == 0 else None)


    class TestForgotten:
        def test_one(self, ddp, forgotten):
            pass

        def test_forgets(self, ddp, forgotten):
            pass


    def test_after_forgotten(ddp):
        is_right(ddp)


    @pytest.fixture(scope="class")
    def own_group(tmp_path_factory, ddp):
        path = ddp.broadcast(str(tmp_path_factory.mktemp("own")) if ddp.rank == 0 else None)
        store = dist.FileStore(f"{path}/store", 2)
        dist.init_process_group("gloo", store=store, rank=ddp.rank, world_size=2)
        yield
        dist.barrier()
        dist.destroy_process_group()


    @pytest.mark.ddp(init=False)
    class TestOwnGroup:
        def test_leaves(self, ddp, own_group):
            if ddp.rank == 0:
                KEPT.append(dist.isend(seven(), 1, tag=8))

        def test_goes_on(self, ddp, own_group):
            is_right(ddp)
"""
)


def run(new_suite: Callable[[], Suite], file: str, source: str) -> Finished:
    suite = new_suite()
    suite.write(file, source)
    return suite.run(*LOADFILE)


@pytest.fixture(scope="module")
def left(new_suite: Callable[[], Suite]) -> Finished:
    bodies = {name: body for name, (body, _) in (LEFT | CUT_OFF).items()}
    return run(new_suite, "test_left.py", PRELUDE + suite_of(bodies))


@pytest.fixture(scope="module")
def legal(new_suite: Callable[[], Suite]) -> Finished:
    return run(new_suite, "test_legal.py", PRELUDE + suite_of(LEGAL) + FAKE)


@pytest.fixture(scope="module")
def wide(new_suite: Callable[[], Suite]) -> Finished:
    return run(new_suite, "test_wide.py", WIDE)


def warnings_of(finished: Finished, name: str) -> list[str]:
    return [text for text in finished.warnings if f"::{name}: " in text]


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_is_named(left: Finished, name: str) -> None:
    assert left[f"test_{name}"].verdict == "passed"
    shown = flat(" ".join(warnings_of(left, f"test_{name}")))
    for words in LEFT[name][1]:
        assert words in shown
    assert shown.count("; the process group is built anew") == shown.count(" behind")


@pytest.mark.parametrize("name", CUT_OFF)
def test_what_another_verdict_cut_off_is_not(left: Finished, name: str) -> None:
    assert left[f"test_{name}"].verdict == CUT_OFF[name][1]
    assert not warnings_of(left, f"test_{name}")


@pytest.mark.parametrize("name", [*LEFT, *CUT_OFF])
def test_the_next_test_does_not_meet_it(left: Finished, name: str) -> None:
    assert left[f"test_after_{name}"].verdict == "passed"
    assert not warnings_of(left, f"test_after_{name}")


@pytest.mark.parametrize("name", LEGAL)
def test_what_is_finished_is_not_named(legal: Finished, name: str) -> None:
    assert legal[f"test_{name}"].verdict == "passed"
    assert legal[f"test_after_{name}"].verdict == "passed"


def test_legal_programs_are_silent(legal: Finished) -> None:
    assert legal["test_fake"].verdict == "passed"
    assert not legal.warnings


WIDE_WARNINGS = {
    "TestKept::test_leaves": "a send without a receive behind (rank 0 to rank 1, tag 8, test_wide",
    "TestForgotten::test_forgets": "a fixture that has ended left a send without a receive",
    "TestOwnGroup::test_leaves": "the group is kept, and the next test may meet them",
}


def test_what_fixtures_have_begun_is_theirs(wide: Finished) -> None:
    wide.assert_outcomes(passed=17)


@pytest.mark.skipif(UNDER_XDIST, reason="a wide fixture lives on where the next test is unknown")
def test_only_what_is_left_of_them_is_named(wide: Finished) -> None:
    for name, words in WIDE_WARNINGS.items():
        (shown,) = warnings_of(wide, name)
        assert words in flat(shown)
    assert len(wide.warnings) == len(WIDE_WARNINGS)
