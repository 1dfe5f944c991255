"""allure-pytest: a ddp test is one result, with the steps and attachments of its ranks.

The plugin writes a result in each process that runs the test: one per rank, all with the same
history id, of which the report shows only the last. So each rank writes into its own folder, and
the pytest process merges these files into its result.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_ddp import fixture
from pytest_ddp.extensions.compat.adapter import Adapter
from pytest_ddp.protocol.host_messages import Json
from pytest_ddp.system.stdlib import json, shutil, tempfile

_FROM_THE_RANK = (
    *("name", "fullName", "description", "descriptionHtml", "parameters", "labels", "links"),
    *("titlePath", "testCaseId", "historyId"),
)
"""Fields of a result that describe the test itself; taken from the lowest rank."""
_OF_A_STEP = ("status", "statusDetails", "steps", "attachments", "start", "stop")
_WORST_FIRST = ("failed", "broken")


class Allure(Adapter):
    """Ranks write into separate folders, and the pytest process makes one result of them."""

    plugin = "allure_listener"

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        """A folder for all attempts; ranks write there up to their exit: wide fixtures end last."""
        self._attempt: Path | None = None

    def attempt_begins(self, item: pytest.Item) -> Json:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="ddp-allure-")
        self._attempt = Path(tempfile.mkdtemp(dir=self._folder.name))
        return {"uuid": self._result_of(item).uuid, "folder": str(self._attempt)}

    def test_begins(self, item: pytest.Item, sent: Json) -> None:
        if not sent:
            return
        folder = Path(sent["folder"], str(fixture.current().rank))
        folder.mkdir()
        _writer()._report_dir = folder
        # The same as in the pytest process, because fixtures name the tests that they are for.
        self._listener(item)._cache._items[id(item.nodeid)] = sent["uuid"]

    def test_finished(self, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
        attempt, self._attempt = self._attempt, None
        result = self._result_of(item)
        folders = {} if attempt is None else {int(one.name): one for one in attempt.iterdir()}
        results = {rank: _result_in(folder) for rank, folder in sorted(folders.items())}
        ranks = {rank: found for rank, found in results.items() if found}
        if not ranks:
            _name(result, item, self._listener(item))
        _fill(result, ranks, reports)
        for rank in ranks:
            _move("*-attachment*", folders[rank])
            if rank == min(ranks):
                _move("*-container.json", folders[rank])
                _move("*-globals.json", folders[rank])

    def _result_of(self, item: pytest.Item) -> Any:
        """The result of the attempt; the plugin has closed the one before it, and begins one in
        setup.
        """
        listener = self._listener(item)
        if (uuid := listener._cache.get(item.nodeid)) is None:
            uuid = listener._cache.push(item.nodeid)
            kind, now = _of("model2").TestResult, _of("utils").now()
            begun = kind(name=item.name, uuid=uuid, start=now, stop=now)
            listener.allure_logger.schedule_test(uuid, begun)
        return listener.allure_logger.get_test(uuid)

    def _listener(self, item: pytest.Item) -> Any:
        return item.config.pluginmanager.getplugin(self.plugin)


def _of(module: str) -> Any:
    # Not imported here, because allure is optional; if it is installed, it has imported it.
    return sys.modules[f"allure_commons.{module}"]


def _writer() -> Any:
    plugins = sys.modules["allure_commons"].plugin_manager.get_plugins()
    return next(one for one in plugins if isinstance(one, _of("logger").AllureFileLogger))


def _move(pattern: str, folder: Path) -> None:
    for file in folder.glob(pattern):
        shutil.move(file, _writer()._report_dir / file.name)


def _result_in(folder: Path) -> Json:
    for file in folder.glob("*-result.json"):
        result: Json = json.loads(file.read_text(encoding="utf-8"))
        return result
    return {}


def _fill(result: Any, ranks: dict[int, Json], reports: Sequence[pytest.TestReport]) -> None:
    """Fill a result from the results of the ranks and from the verdict."""
    if ranks:
        first = ranks[min(ranks)]
        for name in _FROM_THE_RANK:
            if name in first:
                setattr(result, name, first[name])
        result.steps, result.attachments = _work(ranks)
    failed = [report for report in reports if report.failed]
    skipped = [report for report in reports if report.skipped]
    result.statusDetails = None
    if failed:
        statuses = [data.get("status") for data in ranks.values()]
        result.status = next((word for word in _WORST_FIRST if word in statuses), "broken")
        result.statusDetails = _details(failed[0])
    elif skipped:
        result.status, result.statusDetails = "skipped", _details(skipped[0])
    elif reports:  # pytest.exit leaves none
        result.status = "passed"
    result.stop = round(1000 * max((report.stop for report in reports), default=0)) or result.stop


def _work(ranks: dict[int, Json]) -> tuple[list[Json], list[Json]]:
    """Steps and attachments: those of the only rank, or a step for each rank that has some."""
    if list(ranks) == [0]:
        return ranks[0].get("steps", []), ranks[0].get("attachments", [])
    steps = [
        {"name": f"rank {rank}"} | {name: data[name] for name in _OF_A_STEP if name in data}
        for rank, data in ranks.items()
        if data.get("steps") or data.get("attachments") or data.get("status") in _WORST_FIRST
    ]
    return steps, []


def _details(report: pytest.TestReport) -> Json:
    longrepr = report.longrepr
    message = longrepr[2] if isinstance(longrepr, tuple) else ""
    message = message or getattr(getattr(longrepr, "reprcrash", None), "message", "")
    if reason := getattr(report, "wasxfail", ""):
        message = f"XFAIL {reason}\n\n{message}"
    return {
        "message": message or report.longreprtext.partition("\n")[0],
        "trace": report.longreprtext,
    }


def _name(result: Any, item: pytest.Item, listener: Any) -> None:
    """Set the fields that identify the test if no rank did: history and labels depend on them."""
    called = getattr(item, "callspec", None)
    params = called.params.items() if called else ()
    kind, represent = _of("model2").Parameter, _of("utils").represent
    result.parameters = [kind(name=name, value=represent(value)) for name, value in params]
    result.fullName = sys.modules["allure_pytest.utils"].allure_full_name(item)
    result.testCaseId = _of("utils").md5(result.fullName)
    # The plugin's own hook around the teardown.
    hook = listener.pytest_runtest_teardown(item)
    next(hook)
    next(hook, None)
