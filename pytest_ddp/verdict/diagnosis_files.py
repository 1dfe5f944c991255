"""Diagnoses for programs: a JSON file for each failed test, and properties of its report.

The schema is documented in ``docs/diagnosis.md``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_ddp.outcome.outcome import RunOutcome
from pytest_ddp.outcome.stack_dumps import Frame
from pytest_ddp.protocol.rank_status import phase_text
from pytest_ddp.system.stdlib import json
from pytest_ddp.system.whole_files import write_whole
from pytest_ddp.verdict.diagnosis import Diagnosis, RankDiagnosis

VERSION = 2
"""The version of the schema: raised when a field changes its meaning or is removed, not when one is
added."""

_LONGEST_NAME = 100


def properties(diagnosis: Diagnosis) -> list[tuple[str, object]]:
    """The ``user_properties`` of a failed report, which junitxml writes."""
    return [
        ("ddp.verdict", diagnosis.verdict),
        ("ddp.kind", diagnosis.kind.value),
        *((f"ddp.rank{rank.rank}", _summary(rank)) for rank in diagnosis.ranks),
    ]


def _summary(rank: RankDiagnosis) -> str:
    in_phase = f" in {phase_text(rank.phase)}" if rank.phase else ""
    end = rank.signal or ("" if rank.exit_code is None else f"code {rank.exit_code}")
    handling = rank.handling and f"while handling {rank.handling}"
    parts = (f"{rank.state}{in_phase}", end, rank.collective, str(rank.place or ""), handling)
    return ", ".join(part for part in parts if part)


def path_of(directory: Path, nodeid: str) -> Path:
    """The file of a test's record; the digest distinguishes similar node ids."""
    readable = re.sub(r"[^\w.-]+", "_", nodeid, flags=re.ASCII).strip("_")[:_LONGEST_NAME]
    digest = hashlib.sha256(nodeid.encode(errors="surrogateescape")).hexdigest()[:8]
    return directory / f"{readable}-{digest}.json"


def write(directory: Path, outcome: RunOutcome, diagnoses: Sequence[Diagnosis]) -> None:
    """Write the record of a test that failed; remove an older one of a test that did not.

    Raises:
        OSError: it cannot be written.
    """
    path = path_of(directory, outcome.nodeid)
    if not diagnoses:
        path.unlink(missing_ok=True)
        return
    write_whole(path, json.dumps(record(outcome, diagnoses), indent=2) + "\n")


def record(outcome: RunOutcome, diagnoses: Sequence[Diagnosis]) -> dict[str, Any]:
    """The content of the file."""
    return {
        "version": VERSION,
        "nodeid": outcome.nodeid,
        "backend": outcome.backend,
        "world_size": len(outcome.ranks),
        "started": outcome.start,
        "duration": outcome.duration,
        "failures": [_failure(diagnosis) for diagnosis in diagnoses],
    }


def _failure(diagnosis: Diagnosis) -> dict[str, Any]:
    file, line = diagnosis.place
    return {
        "phase": diagnosis.phase.value,
        "kind": diagnosis.kind.value,
        "code": diagnosis.code or None,
        "verdict": diagnosis.verdict,
        "hint": diagnosis.hint or None,
        "root_cause": list(diagnosis.root_cause.ranks),
        "root_cause_unknown": diagnosis.root_cause.unknown or None,
        "file": file,
        "line": line,
        "ranks": [_rank(rank) for rank in diagnosis.ranks],
        "notes": list(diagnosis.notes),
    }


def _rank(rank: RankDiagnosis) -> dict[str, Any]:
    place = rank.place
    return {
        "rank": rank.rank,
        "state": rank.state,
        "phase": phase_text(rank.phase) or None,
        "collective": rank.collective or None,
        "group": rank.group or None,
        "number": rank.number,
        "file": place.file if place else None,
        "line": place.line if place else None,
        "function": (place.function or None) if place else None,
        "said": rank.said or None,
        "handling": rank.handling or None,
        "exit_code": rank.exit_code,
        "signal": rank.signal or None,
        "operator": rank.operator or None,
        "stack": [_frame(frame) for frame in rank.stack],
    }


def _frame(frame: Frame) -> dict[str, Any]:
    return {"file": frame.file, "line": frame.line or None, "function": frame.function or None}
