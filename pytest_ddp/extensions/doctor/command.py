"""``python -m pytest_ddp doctor``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_ddp.extensions.doctor import device_findings, libraries, system, trial
from pytest_ddp.extensions.doctor.findings import CheckResult, as_json, as_text, note, stops
from pytest_ddp.extensions.doctor.report import NAME, Report
from pytest_ddp.extensions.doctor.selftest.cases import selftest_cases
from pytest_ddp.extensions.doctor.selftest.prove import SelftestResult, prove
from pytest_ddp.launch import gpus
from pytest_ddp.system.stdlib import json, signal

HELP = "report which ddp tests this machine can run"
_EPILOG = """Exit code: 0 if ddp tests can run and, with --prove, every verdict is as expected;
1 if something stops them or a verdict is wrong; 2 for wrong arguments."""


def main(arguments: list[str]) -> int:
    """Run the checks and print the findings; return the exit code."""
    try:
        return _main(arguments)
    except KeyboardInterrupt:
        # The context managers below have ended what was running.
        _say("interrupted")
        return 128 + signal.SIGINT


def _main(arguments: list[str]) -> int:
    parser = _parser()
    given = parser.parse_args(arguments)
    known = [part.name for part in selftest_cases(gpus.count_gpus())]
    chosen = known if given.prove == "all" else (given.prove or "").replace(",", " ").split()
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"--prove={given.prove}: there is no part {unknown[0]} here, but {known}")
    try:
        Path(given.report).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--report={given.report}: {error}. Name a directory that can be written to")
    findings = examine()
    if given.json:
        print(json.dumps(_as_json(findings), indent=2))
    else:
        print(f"{as_text(findings)}\n{_summary(findings)}", flush=True)
    if not chosen:
        return 1 if stops(findings) else 0
    return _prove(findings, chosen, Path(given.report))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_ddp doctor",
        description="Report which ddp tests this machine can run, and what stops the others.",
        epilog=_EPILOG,
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.add_argument(
        "--prove",
        nargs="?",
        const="all",
        metavar="PARTS",
        help="run tests with known verdicts and write a report; all parts that this machine can "
        "run, or a list separated by commas",
    )
    parser.add_argument(
        "--report",
        default=".",
        metavar="DIR",
        help=f"folder for {NAME}.md and {NAME}.json of --prove (default: the current one)",
    )
    return parser


def examine() -> list[CheckResult]:
    """All findings; the trial test runs only if no other finding rules it out."""
    facts, problem = libraries.ask_torch()
    found = [
        *libraries.findings(facts, problem, gpus.count_gpus()),
        *device_findings.findings(),
        *system.findings(),
    ]
    if blocking := stops(found):
        topics = ", ".join(finding.topic for finding in blocking)
        return [*found, note("trial", f"no ddp test was tried; first fix: {topics}")]
    return [*found, *trial.findings()]


def _as_json(results: list[CheckResult]) -> dict[str, object]:
    return {
        "format": 1,
        "able": not stops(results),
        "versions": libraries.versions(),
        "findings": as_json(results),
    }


def _summary(results: list[CheckResult]) -> str:
    blocking = stops(results)
    if not blocking:
        return "\nddp tests can run here."
    return f"\nddp tests cannot run here, or hang: see {', '.join(f.topic for f in blocking)}."


def _prove(findings: list[CheckResult], chosen: list[str], directory: Path) -> int:
    count = gpus.count_gpus()
    every = selftest_cases(count)
    # If something stops ddp tests, no part runs; the report gives the reason.
    selected = [] if stops(findings) else [part for part in every if part.name in chosen]
    results = prove(selected, count, _tell)
    report = Report(findings, results, [part.name for part in every if part not in selected])
    try:
        written = report.write(directory)
    except OSError as error:
        _say(f"\nno report could be written: {error}. Name another directory with --report.")
        return 1
    _say(
        f"\n{report.summary()}. The report is in {written} and {written.with_suffix('.json').name}."
    )
    return 0 if report.is_green else 1


def _tell(result: SelftestResult) -> None:
    name = f"{result.part.name:<14}"
    if result.obstacle:
        _say(f"  -   {name} did not run: {result.obstacle}")
        return
    right = len(result.rows) - len(result.wrong)
    state = "ok" if result.is_green else "RED"
    _say(f"{state:>4}  {name} {right} of {len(result.rows)} as expected, {result.seconds:.1f} s")
    for row in result.wrong:
        _say(f"        {row.test}: {row.problem}")
    if result.problem:
        _say(f"        {result.problem}")


def _say(text: str) -> None:
    # Standard output is reserved for the findings, which may be JSON.
    print(text, file=sys.stderr, flush=True)
