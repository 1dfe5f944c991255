"""What ranks say beside their reports: warnings, changed settings, late teardown errors."""

from __future__ import annotations

import sys
import warnings

import pytest

from pytest_ddp.outcome import RunOutcome
from pytest_ddp.protocol import Finished, Warned
from pytest_ddp.verdict.trouble import ranks_text


class DdpWarning(pytest.PytestWarning):
    """A ddp test passed or failed, but left its rank otherwise than it found it."""


class Messages:
    """Passes them on to pytest, each one once however many ranks said it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._told: set[Warned] = set()
        self._problems: dict[str, list[int]] = {}

    @property
    def problems(self) -> list[str]:
        """Tracebacks of teardowns that no report could carry, under the names of the ranks."""
        return [f"{ranks_text(ranks)}\n\n{text}" for text, ranks in self._problems.items()]

    def tell(self, rank: int, message: Warned | Finished) -> None:
        """Take a warning or the end of a rank's session."""
        match message:
            case Finished():
                if message.problem is not None:
                    self._problems.setdefault(message.problem, []).append(rank)
            case Warned():
                self._record_once(message)

    def warn(self, text: str) -> None:
        """Warn of something that is not one test's doing."""
        self._config.issue_config_time_warning(DdpWarning(text), stacklevel=2)

    def after_test(self, outcome: RunOutcome, reports: list[pytest.TestReport]) -> None:
        """Name what the test changed or left, and print what --setup-show shows."""
        path, line, _ = outcome.location
        for text in _remarks(outcome):
            self._record_once(
                Warned(
                    category=f"{DdpWarning.__module__}:{DdpWarning.__qualname__}",
                    message=f"{outcome.nodeid}: {text}",
                    filename=path,
                    lineno=(line or 0) + 1,
                    when="runtest",
                    nodeid=outcome.nodeid,
                )
            )
        self._print(outcome)

    def _print(self, outcome: RunOutcome) -> None:
        first = outcome.ranks[0].done
        if first is not None and first.setup_show:
            writer = self._config.get_terminal_writer()
            writer.write(first.setup_show)

    def _record_once(self, message: Warned) -> None:
        if message not in self._told:
            self._told.add(message)
            self._record(message)

    def _record(self, message: Warned) -> None:
        category = _category(message.category)
        try:
            warning = category(message.message)
        except TypeError:  # a class with a signature of its own
            category = UserWarning
            warning = category(f"{message.category.partition(':')[2]}: {message.message}")
        self._config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": warnings.WarningMessage(
                    warning, category, message.filename, message.lineno
                ),
                "when": message.when,
                "nodeid": message.nodeid,
                "location": None,
            }
        )


def _remarks(outcome: RunOutcome) -> list[str]:
    changed: dict[str, list[int]] = {}
    left: dict[str, list[int]] = {}
    for rank in outcome.ranks:
        if rank.done is not None:
            for text in rank.done.changes:
                changed.setdefault(text, []).append(rank.rank)
            for text in rank.done.rank_doubt:
                left.setdefault(text, []).append(rank.rank)
    return [
        *outcome.suspicions,
        *(f"changed {text}{_on(ranks, outcome)}; restored" for text, ranks in changed.items()),
        *(
            f"left {text} behind{_on(ranks, outcome)}; the rank is replaced"
            for text, ranks in left.items()
        ),
    ]


def _on(ranks: list[int], outcome: RunOutcome) -> str:
    if len(ranks) == len(outcome.ranks):
        return ""
    return f" on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _category(name: str) -> type[Warning]:
    module, _, qualified = name.partition(":")
    found: object = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Warning) else UserWarning
