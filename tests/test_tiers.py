"""``make test`` checks every guarantee on every subject that there is, on more than one rank."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from conformance.systems import REFERENCE

ROOT = Path(__file__).parents[1]
PAIRS = ROOT / "conformance" / "pairs.txt"
_ITEM = re.compile(r"^(conformance/\S+::\w+)\[(.+)\]$")
_OF_REFERENCE = re.compile(
    r"^conformance/(?:\w+/)?test_(?:reference|lightning)\w*\.py::\w+\[(\w+)-[A-Z]{3}-\d\d\]$"
)
_SIZE = re.compile(r"(?:^|-)ws(\d+)(?=-|$)")


def test_the_default_tier_has_every_pair_on_several_ranks() -> None:
    """The file holds the pairs of subject and guarantee, so that none is lost unseen."""
    command = [sys.executable, "-m", "pytest", "conformance", "-m", "not exhaustive"]
    command += ["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "ddp_conformance.plugin"]
    # Without options of the outer run, such as -v, which changes how items are listed.
    environment = {name: text for name, text in os.environ.items() if name != "PYTEST_ADDOPTS"}
    collected = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    pairs = set()
    for test, parameters in filter(None, map(_pair, collected.splitlines())):
        size = _SIZE.search(parameters)
        if size is not None:
            assert int(size[1]) > 1, f"{test}[{parameters}] runs on one rank alone"
            pairs.add(f"{test}[{_SIZE.sub('', parameters).strip('-')}]")
    known = set(PAIRS.read_text(encoding="utf-8").splitlines())
    assert pairs >= known, f"no longer checked, or renamed: {sorted(known - pairs)}"
    assert pairs <= known, f"new; add them to {PAIRS.name}: {sorted(pairs - known)}"


def _pair(line: str) -> tuple[str, str] | None:
    found = _ITEM.match(line)
    return None if found is None else (found[1], found[2])


def test_each_part_of_the_reference_has_its_system() -> None:
    """A part without a system would be in the line of no system on the page of a run."""
    pairs = PAIRS.read_text(encoding="utf-8").splitlines()
    checked = {found[1] for pair in pairs if (found := _OF_REFERENCE.match(pair))}
    listed = {part for parts in REFERENCE.values() for part in parts}
    assert checked - listed == set(), "add them to conformance/systems.py"
    assert listed - checked == set(), "no test checks them"
