"""Makes wrong programs of the legal ones, each by one change of a line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROGRAMS = Path(__file__).with_name("legal_programs.py")


class Mutant(NamedTuple):
    program: str
    line: str
    """A part of the line that is changed: the first such line of the program."""
    change: str | None
    """``swap`` with the next line, else the new text for ``line``."""
    named: str
    """A part of a line that the finding has to name."""

    @property
    def test(self) -> str:
        return f"test_{self.program}__{re.sub(r'[^a-z]+', '_', (self.change or '').lower())}"


SWAP = "swap"
MUTANTS = (
    Mutant("write_after_wait", "work.wait()", SWAP, "x.mul_(2)"),
    Mutant("read_after_wait", "work.wait()", SWAP, "x.sum()"),
    Mutant("read_an_input", "work.wait()", SWAP, "x.zero_()"),
    Mutant("read_what_is_sent", "work.wait()", SWAP, "x.fill_"),
    Mutant("write_by_numpy_after_wait", "work.wait()", SWAP, "dist.all_gather_into_tensor"),
    Mutant("write_through_data_after_wait", "work.wait()", SWAP, "x.data[3] = 5"),
    Mutant("flat_gradients", "parts[1].fill_(2)", "parts[0].fill_(2)", "parts[0].fill_(2)"),
    Mutant("halves", "x[4:].mul_(2)", "x[3:].mul_(2)", "x[3:].mul_(2)"),
    Mutant("columns", "table[:, 2:].fill_(7)", "table[:, 1:].fill_(7)", "table[:, 1:].fill_(7)"),
    Mutant("shapes_and_views", "x.detach()", "x.clone()", "x.clone()"),
    Mutant("polling", "not work.is_completed()", "False", "x.mul_(2)"),
    Mutant("wait_for_the_last", "second.wait()", SWAP, "x.mul_(2)"),
    Mutant("reduce_to_one", "work.wait()", SWAP, "x.mul_(2)"),
    Mutant("two_groups", "all_reduce(y", "all_reduce(x", "group=other"),
    Mutant("one_group_after_the_other", "work.wait()", SWAP, "group=other"),
    Mutant("both_groups_read", "(two, x", "(one, x", "group=other"),
    Mutant("inference", "work.wait()", SWAP, "x.mul_(2)"),
    Mutant("another_thread", "work.wait()", "pass", "dist.all_reduce"),
    Mutant("channels_last", "to(memory_format=torch.channels_last)", "mT", "mT"),
    Mutant("a_contiguous_copy", ".contiguous()", "", "ones(8)[::2]"),
    Mutant("a_scattered_copy", ".contiguous()", "", "ones(16)[::2]"),
    Mutant("minimum_of_flags", "MIN", "BXOR", "BXOR"),
    Mutant("a_group_that_stays_gloo", 'backend="gloo"', "", "BAND"),
    Mutant("integers_as_bytes", ".view(torch.uint8)", "", "dist.send"),
    Mutant("a_named_source", "dist.recv(x, 0)", "dist.recv(x)", "dist.recv(x)"),
    Mutant("dense_embedding", "sparse=False", "sparse=True", "backward()"),
    Mutant("exchange_by_turns", "ddp.rank == 0", "True", "dist.isend"),
    Mutant(
        "exchange_in_a_batch",
        "dist.batch_isend_irecv(messages)",
        "[one.op(one.tensor, one.peer) for one in messages]",
        "one.op(",
    ),
    Mutant(
        "ring_in_batches",
        "dist.batch_isend_irecv(messages)",
        "[one.op(one.tensor, one.peer) for one in messages]",
        "one.op(",
    ),
    Mutant(
        "batch_of_some_after_a_collective_of_all",
        "dist.all_reduce(ones(1), group=group)",
        "pass",
        "batch_isend_irecv",
    ),
    Mutant("batch_of_a_group_of_two", "[0, 2]", "[0, 1, 2]", "batch_isend_irecv"),
    Mutant("room_for_the_size_that_was_sent", "room[: size.item()]", "room", "dist.recv(room"),
    Mutant(
        "loss_of_the_destination",
        "if ddp.rank == 0:",
        "if loss.item() and ddp.rank == 0:",
        "loss.item()",
    ),
    Mutant("a_buffer_that_is_filled_again", "total.copy_(ones(4))", "total.add_(1)", "dist.reduce"),
    Mutant("reduce_with_a_handle", " if ddp.rank == 0 else zeros(4)", "", "dist.all_reduce"),
    Mutant(
        "gradients_of_each_owner", "parts[ddp.rank].norm()", "weights.grad.norm()", "all_reduce"
    ),
    Mutant("reduce_in_a_subgroup", "if ddp.rank != 1:", "if ddp.rank:", "total.sum()"),
    Mutant("tags_in_order", "irecv(y, 0, tag=1)", "irecv(y, 0, tag=2)", "dist.irecv"),
)


def suite() -> tuple[str, dict[str, int]]:
    """The source of a test file with all mutants, and the line that each finding has to name."""
    parts = re.split(r"\n\n\n(?=@|def |# ---)", PROGRAMS.read_text())
    lines = [line for part in parts if " test_" not in part for line in [*part.split("\n"), "", ""]]
    named = {}
    for mutant in MUTANTS:
        (program,) = (part for part in parts if f"def test_{mutant.program}(" in part)
        changed = list(_changed(program.split("\n"), mutant))
        place = next(n for n, line in enumerate(changed) if mutant.named in line)
        named[mutant.test] = len(lines) + place + 1
        lines += [*changed, "", ""]
    return "\n".join(lines), named


def _changed(lines: list[str], mutant: Mutant) -> Iterator[str]:
    place = next(n for n, line in enumerate(lines) if mutant.line in line)
    if mutant.change == SWAP:
        lines[place], lines[place + 1] = lines[place + 1], lines[place]
    else:
        lines[place] = lines[place].replace(mutant.line, mutant.change or "")
        if mutant.program == "tags_in_order":  # the other message takes the tag that is left
            lines[place] = lines[place].replace("irecv(x, 0, tag=2)", "irecv(x, 0, tag=1)")
    for line in lines:
        yield line.replace(f"def test_{mutant.program}(", f"def {mutant.test}(")
