"""Reads the results of pytest sessions, finished or killed, from their files."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_ddp.system.stdlib import json

_BROKEN = ("failure", "error")
_SUITES = ("testsuites", "testsuite")


@dataclass(frozen=True, slots=True)
class Failed:
    """A phase of a test that failed, or a file that could not be collected."""

    name: str
    """``tests.test_model::test_step[2]``, as JUnit files name tests."""
    verdict: str
    """The verdict, in one sentence."""
    text: str
    """What pytest printed about the failure; empty if no JUnit file contains it."""


@dataclass(slots=True)
class Results:
    """The results of several files together."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """Tests by ``passed``, ``failed``, ``skipped`` and ``xfailed``."""
    failed: list[Failed] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """Tests by the reason for which they were skipped."""
    outside: list[str] = field(default_factory=list)
    """Errors outside of tests."""
    interrupted: list[str] = field(default_factory=list)
    """The places of a test's ranks when its session was interrupted, a text for each session."""
    unread: list[str] = field(default_factory=list)
    """Files that could not be read or are missing, and why."""
    reports: int = 0
    """JUnit files, which pytest writes at its end; it writes diagnoses during the session."""


def read(paths: Iterable[Path]) -> Results:
    """Read JUnit files and diagnoses; in folders, other files are ignored."""
    results = Results()
    given = list(paths)
    files = {file for path in given for file in _files(path)}
    for file in sorted(files, key=lambda file: (file.suffix != ".xml", file)):
        try:
            _add(results, file, given)
        except (OSError, ValueError, ElementTree.ParseError) as error:
            results.unread.append(f"{file}: {error}")
    if not results.reports and not results.unread:
        places = ", ".join(map(str, given))
        results.unread.append(f"{places}: there is no JUnit file, which pytest writes at its end")
    return results


def _files(path: Path) -> Iterable[Path]:
    if not path.is_dir():
        return [path]
    return (file for file in path.rglob("*") if file.suffix in (".xml", ".json"))


def _add(results: Results, file: Path, given: list[Path]) -> None:
    if file.suffix == ".json":
        # Compared from a dot on, because --junit-prefix adds a prefix to the name.
        known = tuple(f".{failed.name}" for failed in results.failed if failed.text)
        found = _diagnosis(file)
        results.failed += [
            failed for failed in found if not any(one.endswith(f".{failed.name}") for one in known)
        ]
        return
    root = ElementTree.parse(file).getroot()
    if root.tag in _SUITES:
        _add_report(results, root)
    elif file in given:  # other XML in a folder, such as coverage, is no error
        raise ValueError(f"it begins with <{root.tag}> and is no JUnit file of pytest")


def _add_report(results: Results, root: ElementTree.Element) -> None:
    outcomes: dict[str, str] = {}
    for case in root.iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}".removeprefix("::")
        broken = [part for part in case if part.tag in _BROKEN]
        results.failed += [_failed(name, case, part) for part in broken]
        # A test has two entries where its teardown failed as well.
        if outcomes.get(name) != "failed":
            outcomes[name] = "failed" if broken else _outcome(case)
        if outcomes[name] == "skipped":
            results.skipped[_message(case.find("skipped"))] += 1
    results.outcomes += Counter(outcomes.values())
    properties = root.findall(".//testsuite/properties")
    results.outside += _values(properties, "ddp.problem")
    results.interrupted += _values(properties, "ddp.interrupted")
    results.reports += 1


def _outcome(case: ElementTree.Element) -> str:
    if (skipped := case.find("skipped")) is None:
        return "passed"
    return "xfailed" if skipped.get("type") == "pytest.xfail" else "skipped"


def _failed(name: str, case: ElementTree.Element, part: ElementTree.Element) -> Failed:
    message = _message(part)
    if message == "collection failure":
        message = _error_of(part.text or "") or message
    said = _values(case.iterfind("properties"), "ddp.verdict")
    # The property describes the first failure; this one may be a failed teardown.
    verdict = next((one for one in said if message and one.startswith(message)), message)
    return Failed(name, verdict, part.text or "")


def _error_of(text: str) -> str:
    """The first line of an exception, as pytest shows it."""
    marked = (line[1:].strip() for line in text.splitlines() if line.startswith("E  "))
    return next(marked, "")


def _message(part: ElementTree.Element | None) -> str:
    return "" if part is None else (part.get("message") or "").partition("\n")[0]


def _values(properties: Iterable[ElementTree.Element], name: str) -> list[str]:
    every = (one for group in properties for one in group)
    return [one.get("value") or "" for one in every if one.get("name") == name]


def _diagnosis(file: Path) -> Iterator[Failed]:
    """Failures of a ``--ddp-diagnosis`` file; none for other JSON, such as traces."""
    content: Any = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(content, dict) and "nodeid" in content and "failures" in content:
        for failure in content["failures"]:
            yield Failed(_address(content["nodeid"]), failure["verdict"], "")


def _address(nodeid: str) -> str:
    """A node id as pytest's JUnit files have it: ``tests.test_a.TestB::test_c[x]``."""
    path, bracket, parameters = nodeid.partition("[")
    file, *names = path.split("::")
    module = re.sub(r"\.py$", "", file.replace("/", "."))
    *classes, name = names or [""]
    return f"{'.'.join([module, *classes])}::{name}{bracket}{parameters}"
