"""The report: what counts as a fault, and a form that every verdict fits into."""

from __future__ import annotations

import json
from pathlib import Path

import ddp_conformance
import pytest
from ddp_conformance.framework.registry import Guarantee, Level
from ddp_conformance.frontend import report
from ddp_conformance.frontend.report import Judged
from ddp_conformance.frontend.table import Word
from jsonschema import Draft202012Validator, ValidationError

SCHEMA = json.loads((Path(ddp_conformance.__file__).parent / "report.schema.json").read_text())


def judged(word: Word, guarantee: str = "SMP-01", seconds: float = 0.5) -> Judged:
    return Judged("mine", "loader", guarantee, 2, word, "a reason", ("a witness",), seconds)


@pytest.mark.parametrize(
    ("word", "is_fault"),
    [
        (Word.PASSED, False),
        (Word.EXPECTED, False),
        (Word.SKIPPED, False),
        (Word.NOT_BOUND, False),
        (Word.FAILED, True),
        (Word.UNKNOWN, True),
    ],
)
def test_what_is_broken_or_unknown_is_a_fault(
    word: Word, is_fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judged(word).is_fault is is_fault
    assert report.document([judged(word)], 0, "auto")["conforms"] is not is_fault
    should = Guarantee("SMP-01", "It SHOULD be.", Level.SHOULD)
    monkeypatch.setattr(report, "guarantee_of", lambda guarantee_id: should)
    assert not judged(word).is_fault


def test_every_verdict_fits_the_schema() -> None:
    words = [word for word in Word if word not in (Word.KILLED, Word.SURVIVED)]
    found = report.document([judged(w, g) for w in words for g in ("SMP-02", "SMP-01")], 3, "gloo")
    validator = Draft202012Validator(SCHEMA)
    validator.validate(found)
    assert [one["id"] for one in found["guarantees"]] == ["SMP-01", "SMP-02"]
    assert found["guarantees"][0]["seconds"] == 3.0
    assert found["guarantees"][0]["verdicts"] == {
        "passed": 1, "failed": 1, "unknown": 1, "expected": 1, "not bound": 1, "skipped": 1
    }  # fmt: skip
    with pytest.raises(ValidationError):
        validator.validate(found | {"version": report.VERSION + 1})
    with pytest.raises(ValidationError):
        validator.validate(found | {"verdicts": [{"verdict": "killed"}]})


def test_a_cell_says_the_same() -> None:
    cell = judged(Word.UNKNOWN).cell()
    assert (cell.block, cell.row, cell.world_size) == ("mine", "SMP-01 *", 2)
    assert (cell.word, cell.note, cell.seconds) == (Word.UNKNOWN, "a reason", 0.5)


def test_a_report_is_a_file(tmp_path: Path) -> None:
    report.write(tmp_path / "r.json", report.document([], 0, "auto"))
    assert json.loads((tmp_path / "r.json").read_text())["verdicts"] == []
