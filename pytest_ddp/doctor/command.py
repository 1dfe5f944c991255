"""``python -m pytest_ddp doctor``."""

from __future__ import annotations

import argparse

from pytest_ddp.doctor import devices, libraries, system, trial
from pytest_ddp.doctor.findings import Finding, as_json, as_text, note, stops
from pytest_ddp.launch import gpus
from pytest_ddp.system.own import json

_EPILOG = "Exit code: 0 if ddp tests can run, 1 if something stops them, 2 for wrong arguments."


def main(arguments: list[str]) -> int:
    """Look, and tell; the exit code."""
    given = _parser().parse_args(arguments)
    findings = examine()
    able = not stops(findings)
    if given.json:
        told = {"format": 1, "able": able, "versions": libraries.versions()}
        print(json.dumps({**told, "findings": as_json(findings)}, indent=2))
    else:
        print(as_text(findings))
        print(_summary(findings))
    return 0 if able else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_ddp doctor",
        description="Say what of ddp tests this machine can run, and what to do where it cannot.",
        epilog=_EPILOG,
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    return parser


def examine() -> list[Finding]:
    """All findings; a trial is made only where nothing is known to stop it."""
    facts, problem = libraries.ask_torch()
    found = [
        *libraries.findings(facts, problem, gpus.count_gpus()),
        *devices.findings(),
        *system.findings(),
    ]
    if blocking := stops(found):
        told = ", ".join(finding.topic for finding in blocking)
        return [*found, note("trial", f"no ddp test was tried, for what is said of {told}")]
    return [*found, *trial.findings()]


def _summary(findings: list[Finding]) -> str:
    blocking = stops(findings)
    if not blocking:
        return "\nddp tests can run here."
    return f"\nddp tests cannot run here, or hang: see {', '.join(f.topic for f in blocking)}."
