"""The mark's argument and the options; a watch in each rank; findings as failures or warnings.

Imported by every pytest run; what imports torch is imported in a rank, for a test that wants it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddp.extensions.portable.options import (
    MARK_ARGUMENTS,
    SETTINGS,
    PortableOptions,
    Production,
    Severity,
)
from pytest_ddp.settings.mark import MarkArgument
from pytest_ddp.settings.marked_items import MARK
from pytest_ddp.settings.options import add_options

if TYPE_CHECKING:
    from pytest_ddp.extensions.portable.finding import PortabilityFinding
    from pytest_ddp.outcome.outcome import Finding

_NAME = "portable"
_SHOWN = 5
"""Findings of a test that are shown; one mistake may be behind several."""
_OPTIONS = pytest.StashKey[PortableOptions]()
_WATCH = pytest.StashKey[Any]()


class NotPortableWarning(pytest.PytestWarning):
    """A test would hang or go wrong on the backend of production."""


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser, SETTINGS)


def pytest_configure(config: pytest.Config) -> None:
    backend, severity = (setting.read(config, config.option) for setting in SETTINGS)
    config.stash[_OPTIONS] = PortableOptions(backend, severity)


def pytest_ddp_mark_arguments() -> Mapping[str, MarkArgument]:
    return MARK_ARGUMENTS


# ------------------------------------------------------------------ in the pytest process


def _production(item: pytest.Item) -> str:
    of_session = item.config.stash[_OPTIONS].backend
    backend: Any = item.stash[MARK].extra.get(_NAME, of_session)
    return str(backend)


def pytest_ddp_attempt_begins(item: pytest.Item) -> Mapping[str, Any]:
    backend = _production(item)
    return {_NAME: {"backend": backend}} if backend else {}


def pytest_ddp_findings(
    item: pytest.Item, sent: Mapping[int, Mapping[str, Any]]
) -> list[Finding | str] | None:
    by_rank = {rank: each[_NAME] for rank, each in sent.items() if _NAME in each}
    if not by_rank:
        return None
    from pytest_ddp.verdict.representation import finding_text, wrapped  # noqa: PLC0415

    fails = item.config.stash[_OPTIONS].severity is Severity.FAIL
    failures = []
    for one in found_by_all(by_rank):
        finding = one.as_finding(_production(item))
        text = wrapped(finding_text(finding), _COLUMNS)
        if (fails and not one.is_warning) or not _warn(item, text):
            failures.append(finding)
    more = [f"and {len(failures) - _SHOWN} more"] if len(failures) > _SHOWN else []
    return [*failures[:_SHOWN], *more]


def found_by_all(sent: Mapping[int, Mapping[str, Any]]) -> list[PortabilityFinding]:
    """What is found from what the watch of each rank has sent, in the order of kinds."""
    from pytest_ddp.extensions.portable import finding, issued, orders, point_to_point  # noqa: PLC0415

    read = finding.PortabilityFinding.from_json
    histories = {rank: issued.read(rank, each) for rank, each in sent.items()}
    found = finding.merged({rank: map(read, each["found"]) for rank, each in sent.items()})
    found += orders.order_findings(histories)
    found += point_to_point.message_findings(histories)
    return sorted(found, key=lambda one: [*finding.FindingKind].index(one.kind))


_COLUMNS = 100
"""The width of a warning, which pytest shows as it is."""


def _warn(item: pytest.Item, text: str) -> bool:
    """Warn; returns False where the user's filters make an error of it."""
    try:
        item.warn(NotPortableWarning(text))
    except NotPortableWarning:
        return False
    return True


# ------------------------------------------------------------------ in ranks


def pytest_ddp_test_begins(item: pytest.Item, sent: Mapping[str, Any]) -> None:
    if _NAME not in sent:
        return
    from pytest_ddp.extensions.portable.watch import OperationWatch  # noqa: PLC0415
    from pytest_ddp.rank.groups.group_fixtures import GroupFixtures  # noqa: PLC0415

    production = Production(sent[_NAME]["backend"])
    plugins = item.config.pluginmanager.get_plugins()
    was_used = any(one.hold() for one in plugins if isinstance(one, GroupFixtures))
    watch = OperationWatch(production, default_group_was_used=was_used)
    item.stash[_WATCH] = watch
    watch.start()


def pytest_ddp_test_ended(item: pytest.Item) -> Mapping[str, Any]:
    if _WATCH not in item.stash:
        return {}
    watch = item.stash[_WATCH]
    del item.stash[_WATCH]
    return {_NAME: watch.stop()}
