"""The question at the end of a proved hang, on real ranks: it names what happened, or nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite, flat

HANGS = """
import contextlib

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.ddp(world_size=2)


def step(model):
    model(torch.ones(2, 4)).sum().backward()


def test_batches(ddp):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(3 - ddp.rank):
        step(model)


def test_barrier_after_batches(ddp):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(3 - ddp.rank):
        step(model)
    dist.barrier()


class Branches(torch.nn.Sequential):
    def forward(self, x, takes_both):
        return self[0](x) + self[1](x) if takes_both else self[0](x)


def test_unused(ddp):
    branches = Branches(torch.nn.Linear(400, 400), torch.nn.Linear(400, 400))
    model = DistributedDataParallel(branches, bucket_cap_mb=0.5)
    model(torch.ones(2, 400), ddp.rank == 0).sum().backward()


def test_unused_before_a_barrier(ddp):
    test_unused(ddp)
    dist.barrier()


def test_unsynchronized(ddp):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    step(model)
    with model.no_sync() if ddp.rank == 1 else contextlib.nullcontext():
        step(model)


def test_metric_of_rank_0(ddp):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    step(model)
    if ddp.rank == 0:
        dist.all_reduce(torch.ones(20))
    step(model)


def test_loop(ddp):
    for number in range(4):
        if ddp.rank == 1 and number == 2:
            break
        dist.all_reduce(torch.ones(1))  # in the loop


def test_sizes(ddp):
    dist.all_reduce(torch.ones(2 + ddp.rank))


def test_branch(ddp):
    dist.all_reduce(torch.ones(1))
    if ddp.rank == 0:
        dist.barrier()  # in the branch


def test_groups(ddp):
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (first, second) if ddp.rank == 0 else (second, first):
        dist.all_reduce(torch.ones(1), group=group)


def test_handler(ddp):
    try:
        if ddp.rank == 1:
            raise ValueError("label 17 is out of range")
        dist.all_reduce(torch.ones(1))
    finally:
        dist.barrier()


def test_own_phase(ddp):
    with ddp.phase("backward"):
        if ddp.rank == 0:
            dist.all_reduce(torch.ones(1))  # in the phase
"""


def with_lines(words: str) -> str:
    """The words with ``file:line`` of a comment in the source in place of it."""
    lines = enumerate(HANGS.splitlines(), 1)
    places = {
        text.partition("  # ")[2]: f"test_hangs.py:{n}" for n, text in lines if "  # " in text
    }
    return re.sub(r"\{(.*?)\}", lambda found: places[found[1]], words)


@pytest.fixture(scope="module")
def hangs(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_hangs.py", HANGS)
    return suite.run(timeout=120)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "batches",
            "rank 1 made 2 backward passes, and has ended; rank 0 is in its third: fewer batches "
            "on rank 1, or did rank 1 stop early?",
        ),
        (
            "barrier_after_batches",
            "rank 1 made 2 backward passes; rank 0 is in its third: fewer batches on rank 1, or a "
            "collective for rank 1 alone?",
        ),
        (
            "unused",
            "rank 1 ended its first backward pass without it: did parameters get no gradient "
            "there (find_unused_parameters=True), or was the pass in no_sync()?",
        ),
        (
            "unused_before_a_barrier",
            "rank 1 ended its first backward pass without it: did parameters get no gradient "
            "there (find_unused_parameters=True), or was the pass in no_sync()?",
        ),
        (
            "unsynchronized",
            "rank 1 ended its second backward pass without it: did parameters get no gradient "
            "there (find_unused_parameters=True), or was the pass in no_sync()?",
        ),
        (
            "loop",
            "rank 1 called all_reduce at {in the loop} for the last time as #2, rank 0 again as "
            "#3: did rank 1 leave a loop earlier?",
        ),
        (
            "branch",
            "rank 1 issued no collective on this group at {in the branch}: is it in a branch for "
            "some ranks only?",
        ),
        (
            "own_phase",
            "rank 1 issued no collective on this group at {in the phase}: is it in a branch for "
            "some ranks only?",
        ),
    ],
)
def test_the_question_is_above_the_code(hangs: Finished, name: str, words: str) -> None:
    *_, code = hangs[f"test_{name}"].text.rstrip().splitlines()
    assert flat(hangs[f"test_{name}"].text).endswith(f" {with_lines(words)} {code}")
    assert code == f"{code[:7]}: python -m pytest_ddp explain {code[:7]}"


@pytest.mark.parametrize("name", ["groups", "handler", "sizes", "metric_of_rank_0"])
def test_what_several_histories_lead_to_has_no_question(hangs: Finished, name: str) -> None:
    text = hangs[f"test_{name}"].text
    assert "?" not in text
    assert text.rstrip().splitlines()[-1].startswith("DDP-00")
