"""Texts on served processes: on those that could never end, and on those that have ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pytest_ddp.extensions.adopt.watching import Watched
from pytest_ddp.outcome import stack_dumps
from pytest_ddp.outcome.outcome import Hang, RankLine
from pytest_ddp.protocol.rank_status import PhaseNames
from pytest_ddp.verdict import diagnosis
from pytest_ddp.verdict.diagnosis import RankDiagnosis
from pytest_ddp.verdict.lost_ranks import frame_lines
from pytest_ddp.verdict.rank_failure import exit_text
from pytest_ddp.verdict.text import rows_of

EARLY = "exited with code 0 before its target had returned"
"""For example by ``os._exit(0)``."""


def of_hang(hang: Hang, watched: Sequence[Watched]) -> str:
    """The proof, where each rank was, and its stack."""
    ranks = [_diagnosis(row) for row in hang.table if row.rank >= 0]
    errors = {p.rank: p.status.handled if p.status else None for p in watched}
    lines = [diagnosis.verdict_prefix(errors) + hang.sentence, *rows_of(ranks)]
    for process in sorted(watched, key=lambda process: process.rank):
        lines += _stack(process)
    if in_handlers := diagnosis.note(errors):
        lines += ["", in_handlers]
    return "\n".join(lines)


def of_ends(watched: Iterable[Watched]) -> str:
    """How these processes ended, and where; a paragraph each."""
    return "\n\n".join("\n".join([_end(process), *_stack(process)]) for process in watched)


def _end(watched: Watched) -> str:
    popen = watched.popen
    mark = popen.files.mark()
    if popen.returncode == 0 and not popen.has_returned:
        words = EARLY
    elif popen.returncode is None:
        words = "is still running"
    else:
        words = exit_text(popen.returncode)
    own = stack_dumps.user_line(stack_dumps.main_stack(popen.files.stacks()))
    place = f", at {own}" if own is not None else _noted(mark.seen, mark.site)
    raised = f": {watched.raised}" if watched.raised else ""
    return f"{_name(watched)} {words}{_phase(mark.phase)}{place}{raised}"


def _noted(seen: str, site: str) -> str:
    """Its last place according to its status page, all that is left after SIGKILL."""
    words, place = stack_dumps.last_place(seen, site)
    return f", {words} {stack_dumps.shorten(place)}" if place else ""


def _phase(phase: str) -> str:
    inner = PhaseNames.read(phase).inner
    return f" in {inner}" if inner else ""


def _name(watched: Watched) -> str:
    rank = f"rank {watched.rank}, " if watched.rank >= 0 else ""
    return f"{watched.label} ({rank}pid {watched.popen.pid})"


def _stack(watched: Watched) -> Iterator[str]:
    dumps = stack_dumps.parse_stacks(watched.popen.files.stacks())
    mains = [main for dump in dumps if (main := dump.main()) is not None]
    if mains:
        yield ""
        yield f"{_name(watched)}, most recent call first:"
        yield from frame_lines(mains[-1])


def _diagnosis(row: RankLine) -> RankDiagnosis:
    phase = PhaseNames.read(row.phase).inner
    seen = row.state, phase, row.collective, row.group, row.number, row.place
    return RankDiagnosis(row.rank, *seen, "", None, "", "", ())
