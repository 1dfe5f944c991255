"""Messages of ranks beside their reports: warnings, changed settings, late teardown errors."""

from __future__ import annotations

import contextlib
import itertools
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import pytest

from pytest_ddp.outcome.outcome import RunOutcome, UnmatchedMessages, ranks_text
from pytest_ddp.outcome.stack_dumps import short_text
from pytest_ddp.protocol.messages import Aside, Done, Finished, Warned, XmlNoted
from pytest_ddp.verdict.rank_failure import without_addresses

# ------------------------------------------------------------------
# Sentences on what a test changed or left behind: one for each kind of thing, over all ranks.

_SHOWN = 3
"""Names in a list at most."""


def leak_texts(outcome: RunOutcome) -> list[str]:
    """Sentences about the test, each of which becomes a warning."""
    done = {rank.rank: rank.done for rank in outcome.ranks if rank.done is not None}
    everywhere = len(outcome.ranks)
    left = *_left(done, everywhere), *_unfinished(outcome)
    return [*outcome.suspicions, *_changes(done, everywhere), *left]


def _changes(done: dict[int, Done], everywhere: int) -> Iterator[str]:
    changes = [(rank, change) for rank, each in done.items() for change in each.changes]
    for kind in dict.fromkeys(change.kind for _, change in changes):
        ranks = [rank for rank, change in changes if change.kind == kind]
        how = _listed(change.how for _, change in changes if change.kind == kind)
        yield f"changed {kind}{how}{_on(ranks, everywhere)}; restored"


def _left(done: dict[int, Done], everywhere: int) -> Iterator[str]:
    leaks = [(rank, left) for rank, each in done.items() for left in each.rank_doubt]
    for kind in dict.fromkeys(left.kind for _, left in leaks):
        names: dict[int, list[str]] = {}
        for rank, left in leaks:
            if left.kind == kind:
                names.setdefault(rank, []).append(left.which)
        (first, most), *others = _by_names(names)
        which = _listed(first)
        what = f"{_counted(kind, len(first)) if which else kind}{which}"
        where = _on(most, everywhere)
        also = "".join(
            f", {len(n)}{_listed(n)}{_on(some, everywhere)}" for n, some in others[:_SHOWN]
        )
        if rest := [rank for _, some in others[_SHOWN:] for rank in some]:
            also += f", others{_on(rest, everywhere)}"
        ranks_are = "the rank is" if len(names) == 1 else "the ranks are"
        yield f"left {what} behind{where}{also}; {ranks_are} replaced"


def _unfinished(outcome: RunOutcome) -> Iterator[str]:
    kept = "the group is kept, and the next test may meet them"
    then = kept if outcome.keeps_group else "the process group is built anew"
    for own, is_send in itertools.product((True, False), repeat=2):
        same = [u for u in outcome.unfinished if (bool(u.site), u.count > 0) == (own, is_send)]
        if same:
            subject = "" if own else "a fixture that has ended "
            kind, lacks = ("send", "receive") if is_send else ("receive", "send")
            what = _counted(kind, sum(abs(each.count) for each in same))
            listed = _listed(map(_way, same))
            yield f"{subject}left {what} without a {lacks} behind{listed}; {then}"


def _way(one: UnmatchedMessages) -> str:
    group, _, sender, receiver, number = one.route
    ends = ["any rank" if end < 0 else f"rank {end}" for end in (sender, receiver)]
    way = " to ".join(ends) if one.count > 0 else " from ".join(reversed(ends))
    tag = f"tag {number}" if number else ""
    where = f"group {group!r}" if group != "0" else ""
    return ", ".join(filter(None, (way, tag, where, short_text(one.site))))


def _by_names(names: dict[int, list[str]]) -> list[tuple[list[str], list[int]]]:
    """The things left behind, longest list first, each with the ranks that left the same."""
    found: dict[tuple[str, ...], tuple[list[str], list[int]]] = {}
    for rank, mine in names.items():
        found.setdefault(tuple(sorted(map(without_addresses, mine))), (mine, []))[1].append(rank)
    return sorted(found.values(), key=lambda pair: -len(pair[0]))


def _counted(kind: str, number: int) -> str:
    if number == 1:
        return f"a {kind}"
    return f"{number} {kind}{'es' if kind.endswith('s') else 's'}"


def _listed(names: Iterable[str]) -> str:
    """Names that differ in more than an address, in brackets; empty if there is none."""
    by_plain: dict[str, str] = {}
    for name in filter(None, names):
        by_plain.setdefault(without_addresses(name), name)
    listed = [*by_plain.values()]
    more = len(listed) - _SHOWN
    shown = "; ".join([*listed[:_SHOWN], *([f"{more} more"] if more > 0 else [])])
    return f" ({shown})" if shown else ""


def _on(ranks: list[int], everywhere: int) -> str:
    some = sorted({*ranks})
    if len(some) == everywhere:
        return ""
    return f" on rank{'s' if len(some) > 1 else ''} {', '.join(map(str, some))}"


AsideOfRank: TypeAlias = tuple[int, Aside]
"""A message beside the reports, with the rank that has sent it."""


class SpawnedRanks(NamedTuple):
    """Ranks start slowly, as their host must not fork."""

    why: str
    advice: str

    def __str__(self) -> str:
        return f"ranks are spawned, not forked: {self.why}. {self.advice}"


class DdpWarning(pytest.PytestWarning):
    """A ddp test changed its rank, or left something behind in it."""

    __module__ = "pytest_ddp"  # as filters name it
    about: SpawnedRanks | None = None
    """The fact behind the warning, for programs; None if the text is all."""


class Messages:
    """Passes messages of ranks to pytest, each one once, however many ranks sent it.

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
        self._held: list[AsideOfRank] | None = None
        """Asides of a running test that may not count; None where each is passed on at once."""

    @property
    def problems(self) -> list[str]:
        """Problems that are in no report, such as tracebacks of teardowns with their ranks."""
        of_ranks = (f"{ranks_text(ranks)}\n\n{text}" for text, ranks in self._problems.values())
        return [*of_ranks, *self._further]

    def add_problem(self, text: str) -> None:
        """Add a problem that belongs to no rank."""
        self._further.append(text)

    @contextlib.contextmanager
    def held(self) -> Iterator[list[AsideOfRank]]:
        """Collect what belongs to the running test, for :meth:`tell` if the run counts."""
        self._held = []
        try:
            yield self._held
        finally:
            self._held = None

    def tell(self, rank: int, message: Aside) -> None:
        """Take a warning, a note for junitxml, or the end of a rank's session."""
        if self._held is not None and not isinstance(message, Finished) and message.nodeid:
            self._held.append((rank, message))
            return
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
        """Write a note once; if ranks set an attribute to different values, that of the lowest
        rank."""
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

    def warn(self, about: str | SpawnedRanks) -> None:
        """Issue a warning that belongs to no single test."""
        text = str(about)
        warning = DdpWarning(text)
        warning.about = about if isinstance(about, SpawnedRanks) else None
        try:
            self._config.issue_config_time_warning(warning, stacklevel=2)
        except DdpWarning:
            # Raised from here it would end the session in the middle of a test.
            self.add_problem(f"{text}\n\nA filter makes an error of this warning.\n")

    def after_test(self, outcome: RunOutcome, reports: list[pytest.TestReport]) -> None:
        """Warn of what the test changed or left behind, and print the text of --setup-show."""
        path, line, _ = outcome.location
        for text in leak_texts(outcome):
            message = Warned(
                category=f"{DdpWarning.__module__}:{DdpWarning.__qualname__}",
                message=f"{outcome.nodeid}: {text}",
                filename=path,
                lineno=(line or 0) + 1,
                when="runtest",
                nodeid=outcome.nodeid,
            )
            if not _is_ignored(message):
                self._record_once(message)
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


def _is_ignored(message: Warned) -> bool:
    """Whether a filter ignores a warning, of the session or of the mark of the test that runs
    now."""
    with warnings.catch_warnings(record=True) as shown:
        try:
            warnings.warn_explicit(
                DdpWarning(message.message), None, message.filename, message.lineno
            )
        except DdpWarning:  # by an error filter, which no test's verdict follows
            return False
    return not shown


PROBLEMS = pytest.StashKey[Sequence[str]]()
"""The key, in a config, of the errors outside of the tests, set at the end of the session."""


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
