"""Runs one real ddp test: whether it passes, how ranks start, which plugins are active in them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_ddp.extensions.doctor import rank_witness
from pytest_ddp.extensions.doctor.findings import CheckResult, note, ok, stop
from pytest_ddp.extensions.doctor.selftest import inner_session
from pytest_ddp.rank.startup.plugin_filter import WITHHELD
from pytest_ddp.system.stdlib import json, os

_SUITE = "test_trial.py"
_LIMIT = 300.0
"""Seconds for the session; its test ends after 120."""
_NO_AUTOLOAD = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
_PASSED = {"setup": "passed", "call": "passed", "teardown": "passed"}


def findings() -> list[CheckResult]:
    """Run the test, with the plugins that are installed here."""
    with inner_session.folder_with(_SUITE) as folder:
        environment = {rank_witness.FOLDER: str(folder)}
        ended = inner_session.run(
            folder, "-p", rank_witness.__name__, environment=environment, limit=_LIMIT
        )
        controller, rank = _record(folder / "controller"), _record(folder / "rank")
    if ended.code != 0 or rank is None or controller is None or controller["verdicts"] != _PASSED:
        return [_failure(ended)]
    passed = ok("trial", f"a ddp test of two ranks passes; its session took {ended.seconds:.1f} s")
    found = [passed, _start(controller["spawned"]), *_plugins(controller, rank)]
    if _NO_AUTOLOAD in os.environ:
        why = f"{_NO_AUTOLOAD} is set: pytest loads only the plugins that -p names"
        found.append(note("plugins", why, "pytest -p ddp, or addopts = -p ddp"))
    return found


def _record(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError):
        record: dict[str, Any] = json.loads(path.read_text())
        return record
    return None


def _failure(ended: inner_session.Ended) -> CheckResult:
    how = f"ended with code {ended.code}"
    if ended.code is None:
        how = f"did not end in {_LIMIT:.0f} s"
    lines = ended.output.strip().splitlines()
    bare = [line.removeprefix("INTERNALERROR> ") for line in lines]
    errors = [line for line in bare if re.match(r"E  |ERROR|FAILED|\S*Error: ", line)]
    first = (errors or bare[-1:] or ["nothing was printed"])[0].strip()
    return stop(
        "trial",
        f"a ddp test of two ranks did not pass, pytest {how}: {first}",
        f"the whole text: python -m pytest {inner_session.SUITES / _SUITE}",
    )


def _start(spawned: dict[str, str] | None) -> CheckResult:
    if spawned is not None:
        return note("start", f"ranks are spawned, not forked: {spawned['why']}", spawned["advice"])
    return ok("start", "ranks are forked from a host that has imported torch")


def _plugins(controller: dict[str, Any], rank: dict[str, Any]) -> Iterator[CheckResult]:
    reasons = rank["left_out"]
    absent, partial, unchanged = [], [], []
    others = {name: plugin for name, plugin in controller["plugins"].items() if name != "ddp"}
    for name, here in others.items():
        there = rank["plugins"].get(name)
        if name in reasons:
            yield note("plugins", f"{here['distribution']} is left out of ranks: {reasons[name]}")
        elif there is None:
            absent.append(here["distribution"])
        elif {*WITHHELD} & {*here["hooks"]} - {*there["hooks"]}:
            partial.append(here["distribution"])
        else:
            unchanged.append(here["distribution"])
    if unchanged:
        yield ok("plugins", f"in ranks as they are: {_listed(unchanged)}")
    if absent:
        text = f"in the pytest process alone, where they are of use: {_listed(absent)}"
        yield ok("plugins", text)
    if partial:
        yield ok("plugins", f"in ranks, but for reports and the session's end: {_listed(partial)}")


def _listed(names: list[str]) -> str:
    # A distribution such as pytest-xdist may register several plugins.
    return ", ".join(sorted(set(names)))
