"""An exception whose handler communicates is named, where ranks then wait for ever or fail."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.suite import Finished, Suite, flat

SOURCE = """
    import asyncio
    import contextlib
    import time
    from concurrent.futures import ThreadPoolExecutor
    from datetime import timedelta

    import pytest
    import torch
    import torch.distributed as dist

    ddp2 = pytest.mark.ddp(world_size=2)
    ones = torch.ones


    def fail():
        raise ValueError("label 17 is out of range")


    class Syncing:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            dist.barrier()


    @contextlib.contextmanager
    def syncing():
        try:
            yield
        finally:
            dist.barrier()


    @ddp2
    def test_finally(ddp):
        try:
            if ddp.rank == 1:
                fail()
            dist.all_reduce(ones(1))
        finally:
            dist.barrier()


    @ddp2
    def test_handler(ddp):
        try:
            if ddp.rank == 1:
                fail()
            dist.all_reduce(ones(1))
        except ValueError:
            dist.broadcast_object_list([None], 0)


    @ddp2
    def test_exit_of_a_class(ddp):
        with Syncing():
            if ddp.rank == 1:
                fail()
            dist.all_reduce(ones(1))


    @ddp2
    def test_exit_of_a_generator(ddp):
        with syncing():
            if ddp.rank == 1:
                fail()
            dist.all_reduce(ones(1))


    @ddp2
    def test_fixtures_barrier(ddp):
        try:
            if ddp.rank == 1:
                fail()
            dist.all_reduce(ones(1))
        finally:
            ddp.barrier()


    @ddp2
    def test_the_other_has_ended(ddp):
        with contextlib.suppress(ValueError):
            if ddp.rank == 1:
                with syncing():
                    fail()


    @ddp2
    def test_message_that_cannot_be_had(ddp):
        class Broken(Exception):
            def __str__(self):
                raise RuntimeError

        try:
            if ddp.rank == 1:
                raise Broken
            dist.all_reduce(ones(1))
        finally:
            dist.barrier()


    @ddp2
    def test_skip(ddp):
        with syncing():
            if ddp.rank == 1:
                pytest.skip("no data here")
            dist.all_reduce(ones(1))


    @pytest.mark.ddp(world_size=2, timeout=3)
    def test_timeout(ddp):
        if ddp.rank == 0:
            time.sleep(1000)
        try:
            fail()
        finally:
            dist.barrier()


    @ddp2
    def test_handlers_wait_fails(ddp):
        group = dist.new_group(timeout=timedelta(seconds=1))
        try:
            if ddp.rank == 1:
                fail()
            dist.all_reduce(ones(1), group=group)
        finally:
            dist.barrier(group)


    @ddp2
    def test_all_handle_the_same(ddp):
        try:
            {}["optional"]
        except KeyError:
            if ddp.rank == 0:
                dist.all_reduce(ones(1))
            dist.barrier()


    @ddp2
    def test_each_handles_another(ddp):
        try:
            [{}, []][ddp.rank][0]
        except (KeyError, IndexError):
            if ddp.rank == 0:
                dist.all_reduce(ones(1))
            dist.barrier()


    @ddp2
    def test_handled_before(ddp):
        with contextlib.suppress(ValueError):
            if ddp.rank == 1:
                fail()
        if ddp.rank == 1:
            dist.all_reduce(ones(1))
        dist.barrier()


    @ddp2
    def test_generator_that_is_closed(ddp):
        def steps():
            try:
                yield 1
            finally:
                dist.barrier()

        if ddp.rank == 1:
            begun = steps()
            next(begun)
            begun.close()
        dist.all_reduce(ones(1))


    @ddp2
    def test_legal(ddp):
        try:
            if ddp.rank == 1:
                fail()
        except ValueError:
            dist.all_reduce(ones(1))
        else:
            dist.all_reduce(ones(1))
        dist.barrier()


    def reduces_unless_it_fails(rank):
        if rank == 1:
            fail()
        dist.all_reduce(ones(1))


    @ddp2
    def test_raised_from(ddp):
        try:
            try:
                reduces_unless_it_fails(ddp.rank)
            except ValueError as error:
                raise RuntimeError("training failed") from error
        finally:
            dist.barrier()


    @ddp2
    def test_except_star(ddp):
        try:
            reduces_unless_it_fails(ddp.rank)
        except* ValueError:
            dist.barrier()


    @pytest.mark.ddp(world_size=2, timeout=3)
    def test_in_a_pools_thread(ddp):
        def work():
            with syncing():
                reduces_unless_it_fails(ddp.rank)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(work).result()


    @pytest.mark.ddp(world_size=2, timeout=3)
    def test_to_thread(ddp):
        async def work():
            try:
                reduces_unless_it_fails(ddp.rank)
            finally:
                await asyncio.to_thread(dist.barrier)

        asyncio.run(work())


    @ddp2
    def test_legal_in_threads(ddp):
        async def work():
            try:
                if ddp.rank == 1:
                    fail()
            except* ValueError:
                await asyncio.to_thread(dist.barrier)
            else:
                await asyncio.to_thread(dist.barrier)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, work()).result()
"""
WORDS = "while handling ValueError: label 17 is out of range (rank 1, test_handled.py:17): "
BEGINS = {
    "finally": f"{WORDS}mismatch: rank 0 waits in all_reduce #1",
    "handler": f"{WORDS}mismatch: rank 0 waits in all_reduce #1",
    "exit_of_a_class": f"{WORDS}mismatch: rank 0 waits in all_reduce #1",
    "exit_of_a_generator": f"{WORDS}mismatch: rank 0 waits in all_reduce #1",
    "fixtures_barrier": f"{WORDS}deadlock: rank 0 waits in all_reduce #1",
    "the_other_has_ended": f"{WORDS}deadlock: rank 1 waits in barrier #1",
    "message_that_cannot_be_had": "while handling ",
    "skip": "while handling Skipped: no data here (rank 1, ",
    "timeout": f"{WORDS}timed out after 3 s: rank 0 has not finished call, rank 1 waits",
    "all_handle_the_same": "mismatch: rank 0 waits in all_reduce #1",
    "each_handles_another": "while handling KeyError: 0 (rank 0, test_handled.py:",
    "handled_before": "mismatch: rank 0 waits in barrier #1",
    "raised_from": "while handling RuntimeError: training failed (rank 1, test_handled.py:202), "
    "raised after ValueError: label 17 is out of range (test_handled.py:17): mismatch: rank 0 ",
    "except_star": f"{WORDS}mismatch: rank 0 waits in all_reduce #1",
    "in_a_pools_thread": f"{WORDS}timed out after 3 s: ",
    "to_thread": f"{WORDS}timed out after 3 s: ",
    "generator_that_is_closed": "mismatch: rank 0 waits in all_reduce #1",
}


@pytest.fixture(scope="module")
def handled(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_handled.py", SOURCE)
    return suite.run("--ddp-diagnosis=diagnoses", "--junitxml=diagnoses.xml", timeout=120)


@pytest.mark.parametrize("name", BEGINS)
def test_exception_stands_first_where_not_all_ranks_handle_it(handled: Finished, name: str) -> None:
    text = flat(handled[f"test_{name}"].text)
    assert text.startswith(BEGINS[name]), text[:400]
    assert text.count("while handling") == BEGINS[name].count("while handling"), text


def test_exception_of_all_ranks_is_a_note(handled: Finished) -> None:
    text = flat(handled["test_all_handle_the_same"].text)
    assert text.endswith(
        "all ranks wait in a handler of KeyError: 'optional' (test_handled.py:136) "
        "DDP-003: python -m pytest_ddp explain DDP-003"
    )


def test_exception_stands_before_the_failure_of_its_handler(handled: Finished) -> None:
    result = handled["test_handlers_wait_fails"]
    assert result.verdict == "failed"
    first = result.text.splitlines()[0]
    assert first.startswith("rank 1 of 2 failed in call: while handling ValueError: label 17")


@pytest.mark.parametrize("name", ["test_legal", "test_legal_in_threads"])
def test_legal_handler_passes(handled: Finished, name: str) -> None:
    assert handled[name].verdict == "passed", handled[name].text


def test_programs_get_it_too(handled: Finished) -> None:
    (path,) = (handled.directory / "diagnoses").glob("*test_finally*.json")
    (failure,) = json.loads(path.read_text(encoding="utf-8"))["failures"]
    first, second = failure["ranks"]
    assert failure["kind"] == "mismatch"
    assert failure["verdict"].startswith(WORDS)
    assert (first["handling"], second["handling"]) == (None, "ValueError: label 17 is out of range")
    properties = _properties(handled, "test_finally")
    assert properties["ddp.verdict"].startswith(WORDS)
    assert "while handling ValueError: label 17 is out of range" in properties["ddp.rank1"]
    assert "handling" not in properties["ddp.rank0"]


def _properties(handled: Finished, name: str) -> dict[str, Any]:
    cases = ET.parse(handled.directory / "diagnoses.xml").iter("testcase")
    case = next(case for case in cases if case.attrib["name"] == name)
    return {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
