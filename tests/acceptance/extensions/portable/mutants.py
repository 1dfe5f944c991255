"""Makes wrong programs of the legal ones, each by one change of a line."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PROGRAMS = {name: (HERE / f"legal_{name}.py").read_text() for name in ("programs", "orders")}
"""The suites of legal programs, each a file."""
BUFFER = "a buffer touched in flight"
DIFFERENCE = "a difference between gloo and NCCL"
HANDLE, ORDER = "lost handle", "order between groups"


class Mutant(NamedTuple):
    kind: str
    """The kind of the finding."""
    program: str
    line: str
    """A part of the line that is changed: the first such line of the program."""
    change: str
    """``SWAP`` or ``SWAP_ON_RANK_1``, else the new text for ``line``."""
    named: str = ""
    """A part of a line that the finding has to name."""

    @property
    def test(self) -> str:
        change = re.sub(r"[^a-z0-9]+", "_", f"{self.line} {self.change}".lower())
        return f"test_{self.program}__{change}"


SWAP = "swap"
"""A change that swaps the line with the next one."""
SWAP_ON_RANK_1 = "swap on rank 1"
"""A change that swaps the lines on rank 1 alone: the finding has to name both lines of both
ranks."""
MUTANTS = (
    Mutant(BUFFER, "write_after_wait", "work.wait()", SWAP, "x.mul_(2)"),
    Mutant(BUFFER, "read_after_wait", "work.wait()", SWAP, "x.sum()"),
    Mutant(BUFFER, "read_an_input", "work.wait()", SWAP, "x.zero_()"),
    Mutant(BUFFER, "read_what_is_sent", "work.wait()", SWAP, "x.fill_"),
    Mutant(BUFFER, "write_by_numpy_after_wait", "work.wait()", SWAP, "dist.all_gather_into_tensor"),
    Mutant(BUFFER, "write_through_data_after_wait", "work.wait()", SWAP, "x.data[3] = 5"),
    Mutant(BUFFER, "flat_gradients", "parts[1].fill_(2)", "parts[0].fill_(2)", "parts[0].fill_(2)"),
    Mutant(BUFFER, "halves", "x[4:].mul_(2)", "x[3:].mul_(2)", "x[3:].mul_(2)"),
    Mutant(
        BUFFER, "columns", "table[:, 2:].fill_(7)", "table[:, 1:].fill_(7)", "table[:, 1:].fill_(7)"
    ),
    Mutant(BUFFER, "shapes_and_views", "x.detach()", "x.clone()", "x.clone()"),
    Mutant(BUFFER, "polling", "not work.is_completed()", "False", "x.mul_(2)"),
    Mutant(BUFFER, "wait_for_the_last", "second.wait()", SWAP, "x.mul_(2)"),
    Mutant(BUFFER, "reduce_to_one", "work.wait()", SWAP, "x.mul_(2)"),
    Mutant(BUFFER, "two_groups", "all_reduce(y", "all_reduce(x", "group=other"),
    Mutant(BUFFER, "one_group_after_the_other", "work.wait()", SWAP, "group=other"),
    Mutant(BUFFER, "both_groups_read", "(two, x", "(one, x", "group=other"),
    Mutant(BUFFER, "inference", "work.wait()", SWAP, "x.mul_(2)"),
    Mutant(BUFFER, "another_thread", "work.wait()", "pass", "dist.all_reduce"),
    Mutant(DIFFERENCE, "channels_last", "to(memory_format=torch.channels_last)", "mT", "mT"),
    Mutant(DIFFERENCE, "a_contiguous_copy", ".contiguous()", "", "ones(8)[::2]"),
    Mutant(DIFFERENCE, "a_scattered_copy", ".contiguous()", "", "ones(16)[::2]"),
    Mutant(DIFFERENCE, "minimum_of_flags", "MIN", "BXOR", "BXOR"),
    Mutant(DIFFERENCE, "a_group_that_stays_gloo", 'backend="gloo"', "", "BAND"),
    Mutant(DIFFERENCE, "integers_as_bytes", ".view(torch.uint8)", "", "dist.send"),
    Mutant(DIFFERENCE, "a_named_source", "dist.recv(x, 0)", "dist.recv(x)", "dist.recv(x)"),
    Mutant(DIFFERENCE, "dense_embedding", "sparse=False", "sparse=True", "backward()"),
    Mutant(DIFFERENCE, "exchange_by_turns", "ddp.rank == 0", "True", "dist.isend"),
    Mutant(
        DIFFERENCE,
        "exchange_in_a_batch",
        "dist.batch_isend_irecv(messages)",
        "[one.op(one.tensor, one.peer) for one in messages]",
        "one.op(",
    ),
    Mutant(
        DIFFERENCE,
        "ring_in_batches",
        "dist.batch_isend_irecv(messages)",
        "[one.op(one.tensor, one.peer) for one in messages]",
        "one.op(",
    ),
    Mutant(
        DIFFERENCE,
        "batch_of_some_after_a_collective_of_all",
        "dist.all_reduce(ones(1), group=group)",
        "pass",
        "batch_isend_irecv",
    ),
    Mutant(DIFFERENCE, "batch_of_a_group_of_two", "[0, 2]", "[0, 1, 2]", "batch_isend_irecv"),
    Mutant(
        DIFFERENCE,
        "room_for_the_size_that_was_sent",
        "room[: size.item()]",
        "room",
        "dist.recv(room",
    ),
    Mutant(
        DIFFERENCE,
        "loss_of_the_destination",
        "if ddp.rank == 0:",
        "if loss.item() and ddp.rank == 0:",
        "loss.item()",
    ),
    Mutant(
        DIFFERENCE,
        "a_buffer_that_is_filled_again",
        "total.copy_(ones(4))",
        "total.add_(1)",
        "dist.reduce",
    ),
    Mutant(
        DIFFERENCE, "reduce_with_a_handle", " if ddp.rank == 0 else zeros(4)", "", "dist.all_reduce"
    ),
    Mutant(
        DIFFERENCE,
        "gradients_of_each_owner",
        "parts[ddp.rank].norm()",
        "weights.grad.norm()",
        "all_reduce",
    ),
    Mutant(DIFFERENCE, "reduce_in_a_subgroup", "if ddp.rank != 1:", "if ddp.rank:", "total.sum()"),
    Mutant(DIFFERENCE, "tags_in_order", "irecv(y, 0, tag=1)", "irecv(y, 0, tag=2)", "dist.irecv"),
    Mutant(HANDLE, "gradients_in_one_flat_buffer", "handle.wait()", "pass", "dist.all_reduce"),
    Mutant(HANDLE, "a_message_in_flight", "request.wait()", "pass", "dist.isend"),
    Mutant(HANDLE, "a_message_and_then_a_collective", "request.wait()", "pass", "dist.isend"),
    Mutant(HANDLE, "groups_in_one_order", "first.wait()", "pass", "dist.all_reduce(x"),
    Mutant(HANDLE, "groups_in_one_order", "second.wait()", "pass", "dist.all_reduce(y"),
    Mutant(HANDLE, "groups_in_one_order_in_each_step", "handle.wait()", "pass", "dist.all_reduce"),
    Mutant(HANDLE, "a_group_in_a_group", "second.wait()", "pass", "group=half"),
    Mutant(ORDER, "a_message_in_flight", "dist.recv", SWAP, "dist.recv"),
    Mutant(ORDER, "groups_in_one_order", "first = dist", SWAP_ON_RANK_1),
    Mutant(ORDER, "two_groups_of_the_same_ranks", "first = dist", SWAP_ON_RANK_1),
    Mutant(ORDER, "a_broadcast_of_each_rank", "first = dist", SWAP_ON_RANK_1),
    Mutant(ORDER, "a_group_in_a_group", "first = dist", SWAP_ON_RANK_1),
    Mutant(
        ORDER,
        "objects_go_by_gloo_where_there_is_one",
        "@mixed",
        "@two",
        "broadcast_object_list(found, 0, group=again)",
    ),
)


@cache
def suites() -> tuple[dict[str, str], dict[str, set[str]]]:
    """The sources of test files with all mutants, and the places that each finding has to name."""
    sources, named = {}, {}
    for name, source in PROGRAMS.items():
        parts = re.split(r"\n\n\n(?=@|def |# ---)", source)
        programs = [part for part in parts if "def test_" in part]
        lines = [
            line for part in parts if part not in programs for line in [*part.split("\n"), "", ""]
        ]
        for mutant in MUTANTS:
            for program in programs:
                if f"def test_{mutant.program}(" in program:
                    changed, places = _changed(program.split("\n"), mutant)
                    named[mutant.test] = {f"test_{name}.py:{len(lines) + at + 1}" for at in places}
                    lines += [*changed, "", ""]
        sources[name] = "\n".join(lines)
    assert len(named) == len(MUTANTS)
    return sources, named


def _changed(lines: list[str], mutant: Mutant) -> tuple[list[str], list[int]]:
    """The lines of the mutant, and which of them the finding has to name."""
    place = next(n for n, line in enumerate(lines) if mutant.line in line)
    named = []
    if mutant.change == SWAP:
        lines[place], lines[place + 1] = lines[place + 1], lines[place]
    elif mutant.change == SWAP_ON_RANK_1:
        pair = lines[place : place + 2]
        indent = pair[0][: len(pair[0]) - len(pair[0].lstrip())]
        branches = [f"{indent}if ddp.rank == 1:", *_indented(pair[::-1])]
        lines[place : place + 2] = [*branches, f"{indent}else:", *_indented(pair)]
        named = [place + number for number in (1, 2, 4, 5)]
    else:
        lines[place] = lines[place].replace(mutant.line, mutant.change)
        if mutant.program == "tags_in_order":  # the other message takes the tag that is left
            lines[place] = lines[place].replace("irecv(x, 0, tag=2)", "irecv(x, 0, tag=1)")
    if mutant.named:
        named = [next(n for n, line in enumerate(lines) if mutant.named in line)]
    new = f"def {mutant.test}("
    return [line.replace(f"def test_{mutant.program}(", new) for line in lines], named


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
