"""``worlds`` of the mark, the plan of a world's runs, and ``ddp.across_worlds`` in ranks.

Imported by every pytest run; what imports torch is imported in a rank.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddp.extending import on_rank
from pytest_ddp.extensions.worlds import EXTENSION, PARAMETER
from pytest_ddp.settings.mark import MarkArgument
from pytest_ddp.settings.marked_items import MARK

if TYPE_CHECKING:
    from pytest_ddp.extensions.worlds.plans import Plans
    from pytest_ddp.extensions.worlds.ranks.across import AcrossWorlds
    from pytest_ddp.fixture import Ddp
    from pytest_ddp.session.planned_runs import RunPlan

_PLANS = pytest.StashKey[Any]()
_SIZE = "world_size"


def pytest_ddp_mark_arguments() -> Mapping[str, MarkArgument]:
    return {EXTENSION: MarkArgument(_check, "worlds compares several worlds")}


def _check(value: object) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or len(value) < 2:
        raise ValueError("it is a dict of two worlds or more, such as {'one': 1, 'ddp': 2}")
    return {_checked_name(name): _checked_world(name, given) for name, given in value.items()}


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of a world is a string, not {name!r}")
    return name


def _checked_world(name: object, given: object) -> dict[str, Any]:
    arguments = given if isinstance(given, dict) else {_SIZE: given}
    size = arguments.get(_SIZE)
    if type(size) is not int or size < 1:
        raise ValueError(
            f"world {name!r} is a number of ranks, or a dict of the mark's arguments with "
            f"world_size, not {given!r}"
        )
    if refused := arguments.keys() & {EXTENSION, "nodes"}:
        raise ValueError(f"world {name!r} cannot have {min(refused)}")
    return arguments


# ------------------------------------------------------------------ collection


# First, so that ids are the same in ranks, where other plugins are loaded in another order.
@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    worlds = _worlds_of(metafunc.definition)
    if worlds is None:
        return
    metafunc.fixturenames.append(PARAMETER)
    sets = [
        pytest.param(name, marks=pytest.mark.ddp(**arguments), id=name)
        for name, arguments in worlds.items()
    ]
    metafunc.parametrize(PARAMETER, sets, indirect=True)


def _worlds_of(node: pytest.Item) -> dict[str, dict[str, Any]] | None:
    """The worlds of the nearest mark with some; None without, or where they are wrong."""
    for mark in node.iter_markers("ddp"):
        if EXTENSION in mark.kwargs:
            with contextlib.suppress(ValueError):  # reported with the item
                return _check(mark.kwargs[EXTENSION])
            return None
    return None


@pytest.fixture
def _ddp_world(request: pytest.FixtureRequest) -> Any:
    """Carries the name of a world through pytest's parametrization."""
    return request.param


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    items = [node for node in report.result or () if isinstance(node, pytest.Item)]
    worlds = [item for item in items if report.passed and _worlds_of(item) is not None]
    if not worlds or on_rank(collector.config):
        return report
    errors = [f"{item.nodeid}: {problem}" for item in worlds if (problem := _problem_of(item))]
    if errors:
        report.outcome, report.longrepr, report.result = "failed", "\n".join(errors), []
        return report
    from pytest_ddp.extensions.worlds.plans import Plans  # noqa: PLC0415 - few need it

    # Before anything is deselected: the reference may be run for another world alone.
    collector.config.stash.setdefault(_PLANS, Plans(collector.config)).collected(worlds)
    return report


def _problem_of(item: pytest.Item) -> str:
    marks = item.iter_markers("ddp")
    if any({EXTENSION, _SIZE} <= mark.kwargs.keys() for mark in marks):
        return (
            "@pytest.mark.ddp(worlds=..., world_size=...): each world has a world size of its own. "
            "Remove world_size."
        )
    if getattr(item, "callspec", None) is None or PARAMETER not in item.callspec.params:  # type: ignore[attr-defined]
        return (
            "@pytest.mark.ddp(worlds=...): pytest cannot parametrize it. Put the mark on a test "
            "function, or on a plain class; a unittest.TestCase has no worlds."
        )
    if item.config.hook.pytest_ddp_make_layout(config=item.config) is not None:
        return (
            "@pytest.mark.ddp(worlds=...): the reference's values are files of one machine. Run it "
            "without several machines."
        )
    return ""


# ------------------------------------------------------------------ in the pytest process


def pytest_ddp_plan_runs(item: pytest.Item) -> RunPlan | None:
    if EXTENSION not in item.stash[MARK].extra:
        return None
    plans: Plans = item.config.stash[_PLANS]
    return plans.plan(item)


def pytest_unconfigure(config: pytest.Config) -> None:
    if (plans := config.stash.get(_PLANS, None)) is not None:
        plans.close()


# ------------------------------------------------------------------ in the ranks

_across: AcrossWorlds | None = None


def pytest_ddp_fixture_attributes(ddp: Ddp) -> Mapping[str, object]:
    global _across
    from pytest_ddp.extensions.worlds.ranks.across import AcrossWorlds, NoCarry  # noqa: PLC0415

    _across = AcrossWorlds(ddp.rank, ddp.gather)
    _across.begin(None)
    return {"across_worlds": _across, "world": None, "carry": NoCarry()}


def pytest_ddp_test_begins(sent: Mapping[str, Any]) -> None:
    if _across is None:
        return
    from pytest_ddp.extensions.worlds.ranks import across  # noqa: PLC0415

    across.begin(_across, sent.get(EXTENSION))


def pytest_ddp_test_ended() -> Mapping[str, Any]:
    if _across is not None:
        _across.finish()
    return {}


def pytest_ddp_rank_begins(config: pytest.Config) -> None:
    config.pluginmanager.register(Arithmetic(), "ddp-worlds-arithmetic")


class Arithmetic:
    """A pytest plugin of each rank: that of the run, for what the test computes.

    Not a module, whose path pluggy's frames would show in a full trace.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        with self._entered():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        __tracebackhide__ = True
        with self._entered():
            yield
        if _across is not None:
            _across.end()

    @staticmethod
    def _entered() -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if _across is None else _across.arithmetic()
