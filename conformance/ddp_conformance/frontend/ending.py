"""The end of a session of pytest: the report's files, and the screen below pytest's own lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddp_conformance.framework import seed
from ddp_conformance.frontend import report
from ddp_conformance.frontend.page import page
from ddp_conformance.frontend.report import Judged, Kill
from ddp_conformance.frontend.screen import ScreenRun, last_line, screen, titles


def end(
    config: pytest.Config,
    reporter: Any,
    *,
    judged: Sequence[Judged],
    kills: Sequence[Kill],
    decided: Collection[str],
    missing: int,
    exit_code: int,
    warnings: Mapping[str, int],
    option: str,
) -> None:
    """Write the report and show the screen.

    Args:
        config: the session's.
        reporter: pytest's terminal reporter.
        judged: the verdicts on parts.
        kills: the verdicts on mutants.
        decided: node ids of the tests that gave these verdicts.
        missing: number of tests without a verdict.
        exit_code: pytest's.
        warnings: those that the terminal does not show, with how often each one came.
        option: the option by which the user gets a report.
    """
    run = ScreenRun(
        judged,
        kills,
        missing=missing,
        others=_others(reporter, decided),
        foreign_warnings=sum(warnings.values()),
        exit_code=exit_code,
        whole_table=config.get_verbosity() > 0,
    )
    backend = config.getoption("ddp_backend", None) or "auto"
    document = report.document(judged, seed.seed(), backend, kills, warnings)
    headline, _ = last_line(run)
    where = _write(config, document, page(document, headline, titles()))
    place = f"report: {where}" if where else f"a report of each guarantee: {option}=FILE"
    reporter.section("guarantees")
    for line, good in screen(replace(run, report=place)):
        reporter.line(line, green=good is True, red=good is False)


def _others(reporter: Any, decided: Collection[str]) -> dict[str, int]:
    """Numbers of tests that are neither checks nor mutants, by pytest's words for their end."""
    words = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
    counts = Counter(
        word
        for word in words
        for one in reporter.stats.get(word, ())
        if getattr(one, "nodeid", None) not in decided
    )
    return dict(counts)


def _write(config: pytest.Config, document: Mapping[str, Any], html: str) -> str:
    """Write both files, and return their paths; empty if they cannot be written.

    Without the option they are in pytest's cache.
    """
    target = config.getoption("ddp_conformance_report", None)
    cache = getattr(config, "cache", None)
    if target is not None:
        json = Path(target)
    elif cache is not None:
        try:
            json = cache.mkdir("ddp-conformance") / "report.json"
        except OSError:  # on a file system that is read only
            return ""
    else:
        return ""
    beside = json.with_suffix(".html")
    report.write(json, dict(document))
    beside.write_text(html, encoding="utf-8")
    here = Path.cwd()
    paths = (path.absolute() for path in (beside, json))
    return ", ".join(str(p.relative_to(here) if p.is_relative_to(here) else p) for p in paths)
