"""Judges of what is published, guarded and prepared: pure functions from histories."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ddp_conformance.framework.history import Failed, History
from ddp_conformance.framework.verdict import Violation, ranks_in_words
from ddp_conformance.writing.history import Glimpse, Guarded, Opened, Prepared, Saw, SetUp


def judge_shared_files(history: History) -> tuple[Violation, ...]:
    """WRT-01 and WRT-06: no file is written by the code of two ranks, except locks."""
    writers: defaultdict[tuple[str, str], dict[int, Opened]] = defaultdict(dict)
    for opened in history:
        if isinstance(opened, Opened):
            writers[opened.path, opened.during][opened.rank] = opened
    return tuple(
        Violation(f"{path} is written by the code of {ranks_in_words(sorted(by))}{_in(during)}")
        for (path, during), by in sorted(writers.items())
        if _number(by.values()) > 1 and not all(one.lock for one in by.values())
    )


def _number(opened: Iterable[Opened]) -> int:
    """The number of ranks that write: a file that is made or moved once is that of one of those who
    try.
    """
    tried = {(one.claim, one.rank if one.own or not one.claim else -1) for one in opened}
    owned = {claim for claim, rank in tried if rank >= 0}
    return sum(rank >= 0 or claim not in owned for claim, rank in tried)


def _in(during: str) -> str:
    return f" in {during}" if during else ""


def judge_atomic(history: History) -> tuple[Violation, ...]:
    """WRT-02, one half: at any moment the files hold the last record or the one before."""
    found: dict[tuple[int, int], Violation] = {}
    for glimpse in history:
        if isinstance(glimpse, Glimpse):
            text = _unfit(glimpse)
            if text:
                where = f"while rank {glimpse.rank} makes record {glimpse.number}"
                after = f", after {glimpse.after}" if glimpse.after else ""
                found.setdefault(
                    (glimpse.rank, glimpse.number), Violation(f"{where}{after}: {text}")
                )
    return tuple(found.values())


def _unfit(glimpse: Glimpse) -> str:
    if glimpse.problem:
        return f"the files cannot be read: {glimpse.problem}"
    if glimpse.last in (glimpse.number - 1, glimpse.number):
        return ""
    if glimpse.last < 0:
        return f"no record can be read, not even {glimpse.number - 1}"
    return f"the last record is {glimpse.last}"


def judge_in_time(history: History, number: int, world_size: int) -> tuple[Violation, ...]:
    """WRT-02, other half: a rank can read a record as soon as its call for it has returned."""
    seen = [saw for saw in history if isinstance(saw, Saw)]
    there = {(saw.rank, saw.number) for saw in seen}
    return (
        *(Violation(text) for saw in seen for text in _too_early(saw)),
        *(
            Violation(
                f"rank {rank} never returned from record {record}: the ranks' collectives differ"
            )
            for record in range(number)
            for rank in range(world_size)
            if (rank, record) not in there
        ),
    )


def _too_early(saw: Saw) -> Iterator[str]:
    if saw.problem:
        yield f"rank {saw.rank} cannot read record {saw.number}, {_late(saw)}: {saw.problem}"
    elif saw.last != saw.number:
        yield f"rank {saw.rank} reads {_record(saw.last)} in place of {saw.number}, {_late(saw)}"


def _late(saw: Saw) -> str:
    return f"rank {saw.late} coming last"


def _record(number: int) -> str:
    return "no record" if number < 0 else f"record {number}"


def judge_guard(history: History, *, each_machine: bool = False) -> tuple[Violation, ...]:
    """WRT-05: in every stage one rank acts, always the same; or all ranks refuse.

    With ``each_machine`` that is the same local rank of each machine.
    """
    whole = _by_stage(history)
    if not whole:
        return (Violation("no rank called the guard"),)
    acting: dict[str, int] = {}
    found = [*_silent(whole)]
    stages = _by_stage(history, each_machine=True) if each_machine else whole
    for stage, answers in stages.items():
        ran = [answer.rank for answer in answers if answer.ran]
        refused = [answer for answer in answers if answer.error]
        if len(ran) == 1 and not refused:
            first = min(answer.rank for answer in answers) if each_machine else 0
            acting[stage] = ran[0] - first
        elif len(refused) != len(answers):
            found.append(Violation(f"{stage}: {_answers(ran, refused)}"))
    if len(set(acting.values())) > 1:
        rank = "local rank" if each_machine else "rank"
        listed = "; ".join(f"{stage}: {rank} {number}" for stage, number in acting.items())
        found.append(Violation(f"another rank acts from stage to stage: {listed}"))
    return (*found, *([] if acting or found else [Violation("all ranks refuse in every stage")]))


def _by_stage(history: History, *, each_machine: bool = False) -> dict[str, list[Guarded]]:
    stages: defaultdict[str, list[Guarded]] = defaultdict(list)
    for answer in history:
        if isinstance(answer, Guarded):
            where = f", machine {answer.machine}" if each_machine and answer.machine else ""
            stages[answer.stage + where].append(answer)
    return stages


def _silent(stages: Mapping[str, Sequence[Guarded]]) -> Iterator[Violation]:
    """Ranks that have no answer in a stage where others have one."""
    ranks = {answer.rank for answers in stages.values() for answer in answers}
    for stage, answers in stages.items():
        silent = ranks - {answer.rank for answer in answers}
        if silent:
            yield Violation(f"{stage}: {ranks_in_words(sorted(silent))} never called the guard")


def _answers(ran: Sequence[int], refused: Sequence[Guarded]) -> str:
    acts = f"{ranks_in_words(ran)} acted" if ran else "no rank acted"
    raised = "".join(f", rank {answer.rank} raised {answer.error}" for answer in refused)
    return acts + raised


def judge_preparation(history: History, ranks: Iterable[int]) -> tuple[Violation, ...]:
    """WRT-06: prepared once, before any ``setup``; each of the ``ranks`` usable after its own."""
    texts = (*_unprepared(history), *_not_set_up(history, ranks))
    return tuple(map(Violation, texts)) + judge_shared_files(history)


def _not_set_up(history: History, ranks: Iterable[int]) -> Iterator[str]:
    """A rank that raised before its ``setup`` is named with what it raised."""
    known = {record.rank for record in history if isinstance(record, SetUp | Failed)}
    for rank in ranks:
        if rank not in known:
            yield f"setup never began on rank {rank}"


def _unprepared(history: History) -> Iterator[str]:
    prepared = [record for record in history if isinstance(record, Prepared)]
    if len(prepared) > 1:
        ranks = ranks_in_words(sorted(record.rank for record in prepared))
        yield f"prepare_data ran {len(prepared)} times, on {ranks}"
    for record in prepared:
        if record.in_setup:
            yield f"prepare_data ran on rank {record.rank} when setup had begun there"
    for start in history:
        if isinstance(start, SetUp) and prepared and not start.prepared:
            yield f"setup began on rank {start.rank} before prepare_data had ended"
    for failed in history:
        if isinstance(failed, Failed):
            yield f"rank {failed.rank} cannot be set up: {failed.error}"
