"""The text on a rank that died or was stopped before it reported: how it ended, its stacks."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence

from pytest_ddp.outcome import stack_dumps
from pytest_ddp.outcome.outcome import Ending, RankOutcome
from pytest_ddp.outcome.stack_dumps import Frame, is_of_groups
from pytest_ddp.protocol.messages import EXIT_LINK_LOST
from pytest_ddp.system.stdlib import signal
from pytest_ddp.verdict.rank_failure import (
    WORKER_KILLED,
    RankFailure,
    describe,
    first_line,
    signal_name,
)
from pytest_ddp.verdict.representation import Entry, MarkedLine, laid_out, raw, sentences


def entries_of_lost_rank(
    trouble: RankFailure, label: str, oom: str, width: int, *, first_of_all: bool
) -> list[Entry]:
    """The entries for a lost rank; the verdict has already how the ``first_of_all`` ended."""
    rank = trouble.rank
    lines = [] if first_of_all or trouble.stopped else [f"{label} {describe(trouble)}"]
    lines += explanations(rank, oom)
    blocks: list[Entry] = [sentences("", *lines, width=width)] if lines else []
    details = rank.problem.partition("\n")[2]
    if rank.ending is Ending.NOT_BEGUN and details.strip():
        blocks.append(raw("\n" + textwrap.indent(details.rstrip("\n"), "  ") + "\n"))
    stacks = _stacks(rank, f"{label} in {trouble.phase}")
    return [*blocks, laid_out(stacks)] if stacks else blocks


def explanations(rank: RankOutcome, oom: str) -> Iterator[str]:
    """The known reasons why a rank's process ended, in sentences."""
    if rank.ending is not Ending.EXITED:
        return
    if rank.returncode == 0:
        yield "exit code 0 is no verdict: a report is missing"
    if rank.returncode == -signal.SIGKILL and not rank.problem:
        before = " (the one below was requested earlier)" if rank.stacks else ""
        killer = f"the kernel's out-of-memory killer {oom} during the test"
        yield f"SIGKILL leaves no stack{before}; {killer if oom else _SUSPECT}"
    elif words := stack_dumps.last_exception(rank.stacks):
        yield f"an exception came out of pytest itself: {words}"
    elif not rank.stacks:
        yield "the rank left no stack"
    if rank.returncode == EXIT_LINK_LOST:
        yield "a rank that finds its connection to pytest closed leaves with this code"
    if rank.raised:
        yield f"its {''.join(rank.phase[:1])} had raised {rank.raised}"
    if watchdog := _WATCHDOG.search(rank.stderr):
        yield f"NCCL's watchdog ended it: {first_line(watchdog[1])}"
    if _is_aborted_by_gloo(rank):
        yield f"gloo aborted it (EnforceNotMet, see stderr): {_reason_of_gloo(rank)}"
    if culprit := stack_dumps.culprit(rank.native):
        yield f"it was inside {culprit}"
    if rank.returncode == -signal.SIGSEGV and stack_dumps.is_endless(
        stack_dumps.main_stack(rank.stacks)
    ):
        yield "a stack of 100 calls or more: a recursion may have used up the C stack"


_WATCHDOG = re.compile(r"watchdog thread terminated with exception: (.+)")
"""The last words of ``ProcessGroupNCCL.cpp``'s watchdog, which then ends the process."""
_SUSPECT = "the out-of-memory killer sends it too"
_UNANSWERED = ": it is suspended, or its code ignores or handles SIGUSR1"


def is_gloo_mismatch(rank: RankOutcome) -> bool:
    """True if gloo aborted the rank because it received something that it did not expect."""
    checks = _checks_of_gloo(rank.stderr)
    is_closed = any(map(_CLOSED.search, checks))
    return _is_aborted_by_gloo(rank) and not is_closed and any(map(_UNLIKE.search, checks))


def _is_aborted_by_gloo(rank: RankOutcome) -> bool:
    return rank.returncode == -signal.SIGABRT and _GLOO in rank.stderr


def _checks_of_gloo(stderr: str) -> list[str]:
    return [line.strip() for line in stderr.splitlines() if "enforce fail at" in line]


def _reason_of_gloo(rank: RankOutcome) -> str:
    """Why gloo aborted, by the one of its checks that failed."""
    checks = _checks_of_gloo(rank.stderr)
    if any(map(_CLOSED.search, checks)):
        return "a descriptor of gloo's was closed (did the test close descriptors not its own?)"
    if is_gloo_mismatch(rank):
        called = {f.function for f in stack_dumps.main_stack(rank.stacks) if is_of_groups(f)}
        if called & _MESSAGES:
            return f"{_MESSAGE_TOO_LONG}, or came in place of another one"
        unlike = (
            "the ranks gave one collective tensors of different shape or dtype, or called "
            f"different collectives{_sizes_of_gloo(checks)}"
        )
        # The stack of a wait does not show which operation was begun before it, nor does that of a
        # call that begins one more.
        return f"{unlike}, or {_MESSAGE_TOO_LONG}" if called <= _BEGINNING else unlike
    return checks[-1].removeprefix("what():").strip() if checks else "it does not say why"


def _sizes_of_gloo(checks: list[str]) -> str:
    found = next(filter(None, map(_SIZES.search, checks)), None)
    return f" ({found[1]} bytes came in place of {found[2]})" if found else ""


_SIZES = re.compile(r"nbytes\. (\d+) vs (\d+)\.")
"""gloo splits a tensor into segments, so that these are not always a whole tensor's bytes."""
_MESSAGES = {"send", "recv", "send_object_list", "recv_object_list"}
_BEGINNING = {"isend", "irecv", "batch_isend_irecv"}
_MESSAGE_TOO_LONG = "a message was longer than the tensor that receives it"


_GLOO = "EnforceNotMet"
_CLOSED = re.compile(r"Bad file descriptor|/loop\.cc:")
"""gloo's event loop only checks the kernel's answers for descriptors."""
_UNLIKE = re.compile(r"nbytes|preamble|opcode", re.IGNORECASE)


def _stacks(rank: RankOutcome, label: str) -> list[str]:
    stacks = stack_dumps.shown_stacks(rank.stacks)
    if stacks:
        return ["", *_threads(stacks, label)]
    return ["", f"{label} gave no stack{_UNANSWERED}"] if rank.ending is Ending.STOPPED else []


def _threads(stacks: Sequence[stack_dumps.Stack], label: str) -> Iterator[str]:
    """The main stack, and those of other threads that were in the user's code."""
    main, *others = stacks
    beside = not main.runs_test and any(stack.runs_test for stack in others)
    thread = ", in a thread beside the test" if beside else ""
    yield f"{label}{thread}, most recent call first:"
    yield from frame_lines(main)
    for stack in others:
        yield f"{label}, {'the test itself' if stack.runs_test else 'another thread'}:"
        yield from frame_lines(stack)


def children(trouble: RankFailure, label: str, oom: str, width: int) -> list[Entry]:
    """The entries for a process that the rank forked, such as a DataLoader worker, if it died."""
    if WORKER_KILLED in trouble.message and oom:
        words = f"the kernel's out-of-memory killer {oom} during the test"
        return [sentences("", words, width=width)]
    dumps = [dump for dump in stack_dumps.parse_stacks(trouble.rank.children) if dump.fatal]
    if not dumps or (main := dumps[0].main()) is None:
        return []
    what = f"a process that {label} forked died of {signal_name(dumps[0].signal)}"
    return [
        sentences("", f"{what}, most recent call first:", width=width),
        laid_out(frame_lines(main)),
    ]


def frame_lines(stack: stack_dumps.Stack) -> Iterator[str]:
    """The lines of a stack, without repeated calls and without many calls in libraries."""
    marked = stack_dumps.user_line(stack.frames)
    frames = stack_dumps.trim(stack.frames)
    for own, run in itertools.groupby(frames, lambda frame: stack_dumps.is_user_file(frame.file)):
        calls = [(frame, len(list(repeats))) for frame, repeats in itertools.groupby(run)]
        # One call alone is not left out: the line that counts it would take its place.
        shown = calls if own or len(calls) <= _MOST_OF_LIBRARY + 1 else _outline(calls)
        for frame, times in shown:
            yield MarkedLine(f"> {frame}") if frame == marked else f"  {frame}"
            if times > 1:
                yield f"  ... and {times - 1} more call{'s' * (times > 2)} from there"
        if left_out := sum(times for _, times in calls) - sum(times for _, times in shown):
            yield f"  ... {left_out} more calls in libraries, between these"


def _outline(calls: Sequence[tuple[Frame, int]]) -> list[tuple[Frame, int]]:
    """The calls that show what libraries did: the last, the first, and the steps between them.

    A step is the innermost public function of a file, since wrappers and helpers are mostly in the
    same file, or private. The steps nearest to the last call are preferred.
    """
    public = [number for number, (frame, _) in enumerate(calls) if _is_public(frame)]
    by_file = itertools.groupby(public, lambda number: calls[number][0].file)
    steps = [next(numbers) for _, numbers in by_file]
    preferred = dict.fromkeys((0, len(calls) - 1, *steps, *range(len(calls))))
    return [calls[number] for number in sorted(itertools.islice(preferred, _MOST_OF_LIBRARY))]


def _is_public(frame: Frame) -> bool:
    # A module that is being imported is a step; the interpreter's frozen importer is not.
    name = frame.function
    return not frame.file.startswith("<") and (name == "<module>" or name[:1] not in {"_", "<"})


_MOST_OF_LIBRARY = 7
"""Successive lines outside of the user's code; the compiler alone has twenty-five."""
