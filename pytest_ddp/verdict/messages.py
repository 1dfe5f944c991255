"""Messages of ranks beside their reports: warnings, changed settings, late teardown errors."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace

import pytest

from pytest_ddp.evidence.outcome import RunOutcome
from pytest_ddp.evidence.wording import ranks_text
from pytest_ddp.verdict.remarks import remarks
from pytest_ddp.verdict.trouble import without_addresses
from pytest_ddp.wire.protocol import Aside, Finished, Warned, XmlNoted


class DdpWarning(pytest.PytestWarning):
    """A ddp test changed its rank, or left something behind in it."""

    __module__ = "pytest_ddp"  # as filters name it


class Messages:
    """Passes them to pytest, each one once, however many ranks sent it.

    Messages that differ only in addresses count as one.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._recorded: set[Warned] = set()
        self._noted: dict[XmlNoted, int] = {}
        """The content of the file of ``--junitxml``, with the rank that it is from."""
        self._problems: dict[str, tuple[str, list[int]]] = {}
        """Tracebacks with the ranks that had them; the keys are their texts without addresses."""
        self._further: list[str] = []

    @property
    def problems(self) -> list[str]:
        """Problems that are in no report, such as tracebacks of teardowns with their ranks."""
        of_ranks = (f"{ranks_text(ranks)}\n\n{text}" for text, ranks in self._problems.values())
        return [*of_ranks, *self._further]

    def add_problem(self, text: str) -> None:
        """Add a problem that belongs to no rank."""
        self._further.append(text)

    def tell(self, rank: int, message: Aside) -> None:
        """Take a warning, a note for junitxml, or the end of a rank's session."""
        match message:
            case Finished():
                if message.problem is not None:
                    problem = message.problem
                    first = self._problems.setdefault(without_addresses(problem), (problem, []))
                    first[1].append(rank)
            case Warned():
                self._record_once(message)
            case XmlNoted():
                self._note(rank, message)

    def _note(self, rank: int, note: XmlNoted) -> None:
        """Write it once; if ranks set an attribute to different values, that of the lowest rank."""
        from _pytest.junitxml import xml_key  # noqa: PLC0415 - few need it

        xml = self._config.stash.get(xml_key, None)
        if xml is None:
            return
        if note.nodeid is None:
            if note not in self._noted:
                xml.add_global_property(note.name, note.value)
            self._noted[note] = rank
            return
        attribute = replace(note, value="")
        if rank <= self._noted.get(attribute, rank):
            self._noted[attribute] = rank
            xml.node_reporter(note.nodeid).add_attribute(note.name, note.value)

    def warn(self, text: str) -> None:
        """Issue a warning that belongs to no single test."""
        try:
            self._config.issue_config_time_warning(DdpWarning(text), stacklevel=2)
        except DdpWarning:
            # Raised from here it would end the session in the middle of a test.
            self.add_problem(f"{text}\n\nA filter makes an error of this warning.\n")

    def after_test(self, outcome: RunOutcome, reports: list[pytest.TestReport]) -> None:
        """Warn of what the test changed or left behind, and print the text of --setup-show."""
        path, line, _ = outcome.location
        for text in remarks(outcome):
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
        plain = replace(message, message=without_addresses(message.message))
        if plain not in self._recorded:
            self._recorded.add(plain)
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


def note(config: pytest.Config, name: str, text: str) -> None:
    """Write a property of the suite into the file of ``--junitxml``, if there is one."""
    from _pytest.junitxml import xml_key  # noqa: PLC0415 - few need it

    if (xml := config.stash.get(xml_key, None)) is not None:
        xml.add_global_property(name, text)


def _category(name: str) -> type[Warning]:
    module, _, qualified = name.partition(":")
    found: object = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Warning) else UserWarning
