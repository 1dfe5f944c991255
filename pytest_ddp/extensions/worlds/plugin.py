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
from pytest_ddp.settings.mark import MarkArgument, nearest_first
from pytest_ddp.settings.marked_items import MARK

if TYPE_CHECKING:
    from pytest_ddp.extensions.worlds.plans import Plans
    from pytest_ddp.extensions.worlds.ranks.across import AcrossWorlds
    from pytest_ddp.session.planned_runs import RunPlan, Runs

_PLANS = pytest.StashKey[Any]()
_SIZE = "world_size"


def pytest_ddp_mark_arguments() -> Mapping[str, MarkArgument]:
    return {EXTENSION: MarkArgument(_check, "worlds compares worlds")}


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
    for _, mark in nearest_first(node):
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
    errors = dict.fromkeys(
        f"{item.nodeid.partition('[')[0]}: {problem}"
        for item in worlds
        if (problem := _problem_of(item))
    )
    if errors:
        report.outcome, report.longrepr, report.result = "failed", "\n".join(errors), []
        return report
    from pytest_ddp.extensions.worlds.plans import Plans  # noqa: PLC0415 - few need it

    # Before anything is deselected: the reference may be run for another world alone.
    collector.config.stash.setdefault(_PLANS, Plans(collector.config)).collected(worlds)
    return report


def _problem_of(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    arguments = (
        None if callspec is None else (_worlds_of(item) or {}).get(callspec.params.get(PARAMETER))
    )
    if arguments is None:
        return _NOT_PARAMETRIZED
    if _has_other_size(item, arguments):
        return (
            "@pytest.mark.ddp(worlds=..., world_size=...): each world has a world size of its own. "
            "Remove world_size."
        )
    if item.config.hook.pytest_ddp_make_layout(config=item.config) is not None:
        return (
            "@pytest.mark.ddp(worlds=...): the reference's values are files of one machine. Run it "
            "without several machines."
        )
    return ""


_NOT_PARAMETRIZED = (
    "@pytest.mark.ddp(worlds=...): pytest cannot parametrize it. Put the mark on a test function, "
    "or on a plain class or module; a unittest.TestCase has no worlds."
)


def _has_other_size(item: pytest.Item, arguments: dict[str, Any]) -> bool:
    """Whether a mark beside those of the world, or nearer, has a world size."""
    own = pytest.mark.ddp(**arguments).mark
    for _, mark in nearest_first(item):
        if mark == own:
            continue
        if _SIZE in mark.kwargs:
            return True
        if EXTENSION in mark.kwargs:
            break
    return False


# ------------------------------------------------------------------ in the pytest process


def pytest_ddp_plan_runs(item: pytest.Item) -> RunPlan | None:
    if EXTENSION not in item.stash[MARK].extra:
        return None
    if problem := _problem_of(item):  # a mark that a plugin has added after the collection
        from pytest_ddp.session.planned_runs import RunPlan  # noqa: PLC0415

        return RunPlan(_error(problem))
    plans: Plans = item.config.stash[_PLANS]
    return plans.plan(item)


def _error(text: str) -> Runs:
    from pytest_ddp.session.planned_runs import ItemVerdict  # noqa: PLC0415 - few need it

    yield from ()
    return ItemVerdict(error=text)


def pytest_unconfigure(config: pytest.Config) -> None:
    if (plans := config.stash.get(_PLANS, None)) is not None:
        plans.close()


# ------------------------------------------------------------------ in the ranks

_across: AcrossWorlds | None = None
"""None before the first test with worlds: others import nothing of it, and run under no hook."""


def pytest_ddp_fixture_attributes() -> Mapping[str, object]:
    from pytest_ddp.extensions.worlds.ranks.without_worlds import attributes  # noqa: PLC0415

    return attributes()


def pytest_ddp_test_begins(item: pytest.Item, sent: Mapping[str, Any]) -> None:
    global _across
    data = sent.get(EXTENSION)
    if _across is None and data is None:
        return
    from pytest_ddp import fixture  # noqa: PLC0415
    from pytest_ddp.extensions.worlds.ranks import across  # noqa: PLC0415

    if data is None:
        across.leave()
        return
    if _across is None:
        ddp = fixture.current()
        # An exchange passes through another process, which a rank alone need not wait for.
        gather = ddp.gather if ddp.world_size > 1 else lambda value: [value]
        _across = across.AcrossWorlds(ddp.rank, gather)
        item.config.pluginmanager.register(Arithmetic(), "ddp-worlds-arithmetic")
    across.begin(_across, data)


def pytest_ddp_test_ended() -> Mapping[str, Any]:
    if _across is not None:
        _across.finish()
    return {}


class Arithmetic:
    """A pytest plugin of each rank: that of the run, for what the test computes.

    Not a module, whose path pluggy's frames would show in a full trace.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        with _of_run().arithmetic():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        """A fixture that outlives the run is not made in its arithmetic."""
        is_wider = fixturedef.scope != "function"
        with _of_run().plain_arithmetic() if is_wider else contextlib.nullcontext():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        __tracebackhide__ = True
        with _of_run().arithmetic():
            yield
        _fail(_of_run().call_ended())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, None, None]:
        __tracebackhide__ = True
        with _of_run().arithmetic():
            yield
        _fail(_of_run().teardown_ended())


def _of_run() -> AcrossWorlds:
    assert _across is not None, "registered with the first test that has worlds"
    return _across


def _fail(problem: str) -> None:
    __tracebackhide__ = True
    if problem:
        pytest.fail(problem, pytrace=False)  # no line of the test is wrong
