"""Tests of checks that a subject's traits exclude: deselected, and reported with the reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ddp_conformance
import pytest
from ddp_conformance import api

from tests.acceptance.conformance.conformance_command import Done, run, written

SUITE = """
    from ddp_conformance import Sampler, parametrize_with_checks


    def strided(case):
        return range(case.rank, case.size, case.world_size)


    @parametrize_with_checks([Sampler(strided, {"exact", "uneven"})], world_size=[1])
    def test_conforms(subject, check):
        check(subject)
"""
"""SMP-01 binds it; SMP-02 to SMP-04 do not."""

WHY = "SMP-02 does not bind the trait 'uneven'"
NODE = "test_suite.py::test_conforms[ws1-strided-SMP-02]"


def session(directory: Path, *arguments: str) -> Done:
    written(directory, test_suite=SUITE)
    report = "--ddp-conformance-report=report.json"
    return run(directory, "pytest", "-q", "-rs", "-p", "no:cacheprovider", report, *arguments)


@pytest.mark.parametrize(
    ("arguments", "ended"),
    [
        ((), "1 passed, 3 deselected in"),
        (("-p", "ddp_conformance.plugin"), "1 passed, 3 deselected in"),
        (("-n", "1"), "1 passed in"),  # xdist does not pass counts of deselected tests on
        (("-k", "not SMP-02"), "1 passed, 3 deselected in"),
        # Nothing else is left to be run, and a run without tests is an error.
        (("-k", "SMP and not 01"), "3 skipped, 1 deselected in"),
    ],
)
def test_an_excluded_test_is_deselected(
    arguments: tuple[str, ...], ended: str, tmp_path: Path
) -> None:
    done = session(tmp_path, *arguments)
    assert done.code == 0, done.text
    assert ended in done.text
    words = {one["guarantee"]: one["verdict"] for one in done.report["verdicts"]}
    selected = {"SMP-01": "passed"} | dict.fromkeys(("SMP-02", "SMP-03", "SMP-04"), "not bound")
    if "-k" in arguments:
        selected.pop("SMP-02" if "not SMP-02" in arguments else "SMP-01")
    assert words == selected
    if "SMP-02" in words:
        assert done.verdict("SMP-02", "strided", 1)["reason"] == WHY
        assert WHY in done.text


@pytest.mark.parametrize(
    ("arguments", "ended"),
    [
        (("-k", "smp-02 or SMP-01"), "1 passed, 1 skipped, 2 deselected in"),
        ((NODE, "test_suite.py::test_conforms[ws1-strided-SMP-01]"), "1 passed, 1 skipped in"),
    ],
)
def test_a_test_that_the_command_line_names_is_skipped(
    arguments: tuple[str, ...], ended: str, tmp_path: Path
) -> None:
    done = session(tmp_path, *arguments)
    assert done.code == 0, done.text
    assert ended in done.text
    assert f"SKIPPED [1] test_suite.py:9: {WHY}\n" in done.text
    found = done.verdict("SMP-02", "strided", 1)
    assert (found["verdict"], found["reason"]) == ("not bound", WHY)


def test_a_session_that_collects_alone_has_no_verdicts(tmp_path: Path) -> None:
    done = session(tmp_path, "--collect-only")
    assert done.code == 0, done.text
    assert "1/4 tests collected (3 deselected) in" in done.text
    assert "= guarantees =" not in done.text


def test_the_command_deselects_what_is_not_named(tmp_path: Path) -> None:
    parts = "\n".join(SUITE.splitlines()[:7])
    command = ("ddp_conformance", "parts:strided", "--as", "sampler", "-t", "uneven", "-w", "1")
    whole = run(written(tmp_path, parts=parts), *command)
    assert (whole.code, "1 passed, 3 deselected" in whole.text) == (0, True), whole.text
    named = run(tmp_path, *command, "--check", "SMP-01", "--check", "SMP-02")
    assert (named.code, "1 passed, 1 skipped" in named.text) == (0, True), named.text


def test_without_the_plugin_excluded_tests_are_skipped(tmp_path: Path) -> None:
    without = ("-q", "-p", "no:ddp_conformance.plugin", "-p", "no:cacheprovider")
    done = run(written(tmp_path, test_suite=SUITE), "pytest", *without)
    assert (done.code, "1 passed, 3 skipped in" in done.text) == (0, True), done.text


def test_a_session_without_checks_imports_nothing_heavy() -> None:
    """The plugin is loaded by each session."""
    heavy = "[m for m in sys.modules if m in ('torch', 'numpy') or m.endswith('.registry')]"
    code = f"import sys, ddp_conformance.plugin; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_those_of_the_api() -> None:
    public = {name: value for name, value in vars(api).items() if not name.startswith("_")}
    assert set(ddp_conformance.__all__) == set(public)
    assert all(getattr(ddp_conformance, name) is value for name, value in public.items())
    with pytest.raises(AttributeError, match="has no attribute 'Smapler'"):
        ddp_conformance.Smapler  # noqa: B018
