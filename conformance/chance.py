"""Verdicts by chance: judged in one way with one seed of delays, and otherwise with another.

``make chance`` runs all mutants and benign variants, or other tests that it is given, once with
each seed. A verdict that is not the same in all of these runs rests on the order in which ranks
happened to act; its check has to choose that order.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from ddp_conformance.framework.seed import OPTION as SEED
from ddp_conformance.framework.verdict import EVIDENCE

FILE = "--ddp-verdicts"
FOLDER = Path("build/chance")
NO_VERDICT = "no verdict"
"""The outcome of a test that a run did not come to."""

Verdicts = Mapping[str, str]
"""How each test ended, by its id."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """A file for the verdicts of a run, which ``-p conformance.chance`` writes."""
    parser.addoption(FILE, metavar="FILE", help="write how each test ended as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Collect verdicts where they are shown, not in the processes of pytest-xdist or in ranks."""
    target = config.getoption(FILE)
    if target is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writing(Path(target)), "conformance-chance")


class Writing:
    """Writes the verdicts of one run."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._verdicts: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A check that did not pass has noted whether it found a violation or is undecided."""
        if report.when == "call" or not report.passed:
            ended = dict(report.user_properties).get(EVIDENCE)
            self._verdicts[report.nodeid] = ended[0] if ended else str(report.outcome)

    def pytest_sessionfinish(self) -> None:
        """Write the verdicts, also those of a run that was interrupted."""
        self._target.write_text(json.dumps(self._verdicts, indent=1), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Run pytest with ``arguments`` once for each seed; 1 if a verdict is not the same in all."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.chance",
        description=__doc__,
        epilog="All other arguments are pytest's.",
        allow_abbrev=False,
    )
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="seeds 0 to N-1")
    options, given = parser.parse_known_args(arguments)
    FOLDER.mkdir(parents=True, exist_ok=True)
    runs = {seed: _run(seed, given) for seed in range(options.seeds)}
    lines = list(differences(runs))
    print("\n".join([*lines, _summary(runs, len(lines))]))
    return 1 if lines or not any(runs.values()) else 0


def _run(seed: int, arguments: Sequence[str]) -> Verdicts:
    target = FOLDER / f"{seed}.json"
    target.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "pytest", "-p", "conformance.chance", "-p", "no:cacheprovider"),
        *(f"{FILE}={target}", f"{SEED}={seed}", "-q", *arguments),
    ]
    began = time.monotonic()
    with target.with_suffix(".txt").open("w", encoding="utf-8") as output:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False)
    verdicts: Verdicts = json.loads(target.read_text("utf-8")) if target.exists() else {}
    seconds = time.monotonic() - began
    print(f"seed {seed}: {len(verdicts)} verdicts in {seconds:.0f} s, {output.name}", flush=True)
    return verdicts


def differences(runs: Mapping[int, Verdicts]) -> Iterator[str]:
    """A line for each test whose verdict depends on the seed, with the seeds of each verdict."""
    for test in sorted({test for verdicts in runs.values() for test in verdicts}):
        seeds: defaultdict[str, list[int]] = defaultdict(list)
        for seed, verdicts in runs.items():
            seeds[verdicts.get(test, NO_VERDICT)].append(seed)
        if len(seeds) > 1:
            listed = (f"{word} with {', '.join(map(str, own))}" for word, own in seeds.items())
            yield f"{test}: {'; '.join(listed)}"


def _summary(runs: Mapping[int, Verdicts], number: int) -> str:
    tests = len({test for verdicts in runs.values() for test in verdicts})
    if not tests:
        return f"no test has a verdict; see {FOLDER}"
    plural = "" if number == 1 else "s"
    return f"{tests} tests, seeds 0 to {len(runs) - 1}: {number or 'no'} verdict{plural} by chance"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
