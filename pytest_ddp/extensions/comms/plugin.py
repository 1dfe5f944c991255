"""``ddp.comms`` for the fixture, tables beside failures, and an end for blocks left open.

Imported by every pytest run; what imports torch is imported where a test makes a block.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddp.extensions.comms import FOLDER, OPTION_GROUP, UNUSABLE_BLOCK

if TYPE_CHECKING:
    import torch

    from pytest_ddp.extensions.comms.block import Comms
    from pytest_ddp.fixture import Ddp


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup(OPTION_GROUP).addoption(
        "--ddp-update-comms",
        action="store_true",
        help="write the snapshots that tests compare what they communicate with",
    )


def pytest_ddp_fixture_attributes(ddp: Ddp) -> Mapping[str, object]:
    return {"comms": partial(_comms, ddp)}


def pytest_ddp_test_begins(item: pytest.Item) -> None:
    global _item
    _item = item


_item: pytest.Item | None = None
"""The item of the running test."""


def _comms(ddp: Ddp, model: torch.nn.Module | None = None, *, warmup: int = 0) -> Comms:
    """Make a context that records what its block communicates on this rank.

    Args:
        model: for the names of modules; without it records name none.
        warmup: how many forward passes of the model are not counted, nor what follows each of
            them until the next.

    Raises:
        ValueError: there is a warmup and no model.
    """
    from pytest_ddp.extensions.comms.block import Comms  # noqa: PLC0415

    assert _item is not None
    return Comms(ddp, _item, model, warmup)


_ITEMS = pytest.StashKey[list[pytest.Item]]()
_PASSED = pytest.StashKey[set[str]]()
"""Node ids of the tests that have passed."""
_USED = pytest.StashKey[set[Path]]()
"""Snapshots that tests have compared or written."""


def _blocks() -> Any:
    """The module of blocks; None where no test has made one."""
    return sys.modules.get("pytest_ddp.extensions.comms.block")


def pytest_ddp_findings(item: pytest.Item, sent: Mapping[int, Mapping[str, Any]]) -> None:
    names = [name for of_rank in sent.values() for name in of_rank.get("comms", ())]
    if names:
        from pytest_ddp.extensions.comms.snapshot_files import path_of  # noqa: PLC0415

        # Of a rank on another machine the folder is another one.
        folder = path_of(item, "").parent
        item.config.stash.setdefault(_USED, set()).update(folder / name for name in names)


def pytest_ddp_test_finished(item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
    if all(report.passed for report in reports):
        item.config.stash.setdefault(_PASSED, set()).add(item.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.stash[_ITEMS] = getattr(session, "items", [])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    items = config.stash.get(_ITEMS, [])
    folders = {item.path.parent / FOLDER for item in items}
    if not any(folder.is_dir() for folder in folders) or _is_narrowed(terminalreporter, config):
        return
    from pytest_ddp.extensions.comms.snapshot_files import unused, without_test  # noqa: PLC0415

    for path in without_test(items):
        terminalreporter.write_line(f"ddp.comms: no test has the snapshot {path}; delete it")
    passed, used = config.stash.get(_PASSED, set()), config.stash.get(_USED, set())
    for path in unused(items, passed, used):
        terminalreporter.write_line(
            f"ddp.comms: its test passed without the snapshot {path}; delete it"
        )


def _is_narrowed(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> bool:
    """Whether this run may lack tests of its files."""
    narrowed = terminalreporter.stats.get("deselected") or config.getoption("lf", default=False)
    return bool(narrowed) or any("::" in arg for arg in config.args)


def pytest_ddp_test_ended() -> Mapping[str, Any]:
    # Blocks hold their models, which no later test may find alive.
    blocks = _blocks()
    if blocks is None:
        return {}
    blocks.used.clear()
    from pytest_ddp.extensions.comms.snapshot_files import compared  # noqa: PLC0415

    sent, compared[:] = [*compared], []
    return {"comms": sent} if sent else {}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    __tracebackhide__ = True
    # Outermost, since a fixture of the test may hold the block.
    try:
        yield
    finally:
        blocks = _blocks()
        left = None if blocks is None else blocks.open_comms
        if left is not None:
            left.close()
    if left is not None:
        from pytest_ddp.protocol.messages import coded  # noqa: PLC0415

        words = (
            f"ddp.comms: the block opened at {left.opened_at} was still open after its test; "
            "leave it there,\nor in a fixture of function scope"
        )
        raise coded(pytest.fail.Exception(words, pytrace=False), UNUSABLE_BLOCK)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    blocks = _blocks()
    if report.failed and blocks is not None and blocks.used:
        from pytest_ddp.outcome.stack_dumps import shorten  # noqa: PLC0415

        tables = (f"block at {shorten(one.opened_at)}:\n{one.table()}" for one in blocks.used)
        report.sections.append((f"ddp.comms {report.when}", "\n\n".join(tables)))
    return report
