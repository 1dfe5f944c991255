"""What the fidelity run makes of the verdicts of two runs."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest

from fidelity import sources
from fidelity.__main__ import main, row
from fidelity.comparing import Comparison, Difference, Reason, compare
from fidelity.reasons import REASONS
from fidelity.suites import SUITES, Suite

ROOT = Path(__file__).parents[2]
PLAIN = {"a.py::test_one": "passed", "a.py::test_two[1]": "call skipped"}


def test_equal_verdicts() -> None:
    found = compare("package", PLAIN, dict(PLAIN), ())
    assert found == Comparison(2, ())
    assert (found.equal, found.faithful) == (2, True)


def test_nothing_that_ran_is_not_faithful() -> None:
    assert not compare("package", {}, {}, ()).faithful


def test_another_verdict() -> None:
    found = compare("package", PLAIN, PLAIN | {"a.py::test_one": "call failed"}, ())
    assert found.differences == (Difference("a.py::test_one", "passed", "call failed", None),)
    assert (found.equal, found.faithful) == (1, False)
    assert "a.py::test_one: passed; on ranks: call failed" in str(found.differences[0])


@pytest.mark.parametrize("missing_on_ranks", [True, False])
def test_a_test_that_ran_once_only(missing_on_ranks: bool) -> None:
    fewer = {"a.py::test_one": "passed"}
    runs = (PLAIN, fewer) if missing_on_ranks else (fewer, PLAIN)
    (difference,) = compare("package", *runs, ()).unexplained
    assert difference.nodeid == "a.py::test_two[1]"
    assert {difference.plain, difference.on_ranks} == {"call skipped", "not run"}


@pytest.mark.parametrize(
    ("reason", "explained"),
    [
        (Reason("package", r"a\.py::test_two\[.*\]", "why"), 1),
        (Reason("package", r"a\.py::test", "no whole node id"), 0),
        (Reason("another", r".*", "another package"), 0),
    ],
)
def test_reasons(reason: Reason, explained: int) -> None:
    found = compare("package", PLAIN, PLAIN | {"a.py::test_two[1]": "call failed"}, [reason])
    assert found.faithful == bool(explained)
    assert found.equal == 1
    line = row(Suite("package", "1.0", ()), found)
    assert f"| package | 1.0 | 2 | 2 | 1 | {explained} | {1 - explained} |" in line


def test_reasons_are_of_suites_and_patterns() -> None:
    assert {reason.package for reason in REASONS} <= {suite.package for suite in SUITES}
    for reason in REASONS:
        re.compile(reason.pattern)
        assert reason.text


def test_versions_are_those_that_are_installed() -> None:
    lines = (ROOT / "constraints.txt").read_text().lower().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    for suite in SUITES:
        assert pinned.get(suite.package, suite.version) == suite.version


def test_unknown_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no-such"])
    assert "no suite of no-such; there are attrs, click" in capsys.readouterr().err


def test_a_source_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    def fetch(suite: Suite, directory: Path) -> Path:
        fetched.append(suite)
        inner = directory / "some_1-2"
        inner.mkdir()
        (inner / "test_some.py").write_text("")
        with tarfile.open(directory / "some.tar.gz", "w:gz") as archive:
            archive.add(inner, inner.name)
        return directory / "some.tar.gz"

    monkeypatch.setattr(sources, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(sources, "_fetch", fetch)
    suite = Suite("some", "1.2", ())
    for _ in range(2):
        folder = sources.source_of(suite)
        assert [file.name for file in folder.iterdir()] == ["test_some.py"]
    assert fetched == [suite]
    assert list((tmp_path / "cache").iterdir()) == [folder]
