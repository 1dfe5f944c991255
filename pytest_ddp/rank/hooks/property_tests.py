"""Property tests (Hypothesis) on ranks: all ranks run the same examples, each of them once.

Hypothesis repeats an example that failed, to shrink it and to show it. If it failed on one rank
alone, the collectives of the repeated runs would be matched with those of other examples on the
other ranks. So nothing is shrunk, and where Hypothesis repeats an example to show it, it gets the
failure and the notes of the first run.

Hypothesis is never imported before the tests have imported it. Stateful tests
(``RuleBasedStateMachine``) are not changed.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import pytest

from pytest_ddp.system.stdlib import inspect

_PROVIDERS = "hypothesis.internal.conjecture.providers"


class Properties:
    """A pytest plugin around the call of each item."""

    def __init__(self) -> None:
        self.seed = 0
        """The test's seed, which is the same on all of its ranks."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # Hypothesis's own hook checks the settings
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        test = getattr(getattr(item, "obj", None), "__func__", getattr(item, "obj", None))
        if not (getattr(test, "is_hypothesis_test", False) and hasattr(test, "hypothesis")):
            return (yield)
        with _in_step(item, test, self.seed):
            return (yield)


@contextlib.contextmanager
def _in_step(item: pytest.Item, test: Any, seed: int) -> Iterator[None]:
    """Run a test made by ``@given`` on this rank with the same examples as on all others."""
    from hypothesis import core  # noqa: PLC0415 - the test has imported it

    _check_fixtures(item, test._hypothesis_internal_use_settings)
    _keep_local_constants()
    handle, settings = test.hypothesis, test._hypothesis_internal_use_settings
    inner, chosen_seed = handle.inner_test, test._hypothesis_internal_use_seed
    handle.inner_test = _Once(inner).test
    test._hypothesis_internal_use_settings = _settings_for_ranks(settings)
    # Only if the user has set no seed: by @seed, by @settings, by --hypothesis-seed.
    if chosen_seed is None and not settings.derandomize and core.global_force_seed is None:
        test._hypothesis_internal_use_seed = seed
    try:
        yield
    finally:
        # A parametrized function is the test of several items.
        handle.inner_test = inner
        test._hypothesis_internal_use_settings = settings
        test._hypothesis_internal_use_seed = chosen_seed


def _settings_for_ranks(settings: Any) -> Any:
    """The test's own settings, without those that only suit a single process."""
    from hypothesis import HealthCheck, Phase  # noqa: PLC0415 - the test has imported it

    # No time limits: a rank waits for others, and may share a core with them. No check of fixtures:
    # an example leaves nothing in ``ddp`` for the next one, and _check_fixtures checks the others.
    unbound = {HealthCheck.too_slow, HealthCheck.function_scoped_fixture}
    return type(settings)(
        parent=settings,
        phases=[phase for phase in settings.phases if phase in (Phase.explicit, Phase.generate)],
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=unbound.union(settings.suppress_health_check),
    )


def _check_fixtures(item: Any, settings: Any) -> None:
    """Hypothesis's own check of function-scoped fixtures, but without ``ddp``.

    Raises:
        hypothesis.errors.FailedHealthCheck: examples share a fixture that was made for one test.
    """
    from hypothesis import HealthCheck, errors  # noqa: PLC0415 - the test has imported it

    info = item._fixtureinfo
    given = {"ddp", *getattr(getattr(item, "callspec", None), "params", ())}
    shared = [
        name
        for name in info.argnames
        if name not in given and info.name2fixturedefs[name][-1].scope == "function"
    ]
    if shared and HealthCheck.function_scoped_fixture not in settings.suppress_health_check:
        raise errors.FailedHealthCheck(
            f"{item.nodeid!r} uses the function-scoped fixture {shared[0]!r}, which is not reset "
            "between the examples of @given. If the test works all the same, say so with "
            "@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])."
        )


def _keep_local_constants() -> None:
    """Use only the constants of local modules that were imported at collection.

    Hypothesis would use those of all modules that are imported now, and ranks that ran different
    tests before have imported different modules.
    """
    providers: Any = sys.modules.get(_PROVIDERS)
    constants = getattr(providers, "_local_constants", None)
    if constants is not None:
        providers._get_local_constants = lambda: constants


class _Once:
    """Runs a test's examples until one fails, and from then on raises its failure again."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        self._failure: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._notes: list[str] = []
        wrap = self._coroutine if inspect.iscoroutinefunction(inner) else self._function
        self.test = wrap(inner)

    def _function(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def test(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            self._fail_again()
            with self._example():
                return inner(*args, **kwargs)

        return test

    def _coroutine(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        async def test(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            self._fail_again()
            with self._example():
                return await inner(*args, **kwargs)

        return test

    def _fail_again(self) -> None:
        __tracebackhide__ = True
        if self._failure is None:
            return
        from hypothesis import control  # noqa: PLC0415 - the test has imported it
        from hypothesis.internal.conjecture.data import DataObserver  # noqa: PLC0415

        # The real observer would miss the test's draws from st.data(), and call the test flaky.
        control.current_build_context().data.observer = DataObserver()
        _report(self._notes)
        raise self._failure.with_traceback(self._traceback)

    @contextlib.contextmanager
    def _example(self) -> Iterator[None]:
        from hypothesis import control, errors  # noqa: PLC0415 - the test has imported it

        context = control.current_build_context()
        try:
            with _noting(context) as notes:
                yield
        except (errors.UnsatisfiedAssumption, errors.StopTest):
            raise
        except BaseException as failure:
            # Each @example is run once, unchanged, and may be expected to fail.
            if not context.is_final:
                self._failure, self._notes = failure, notes
                self._traceback = _below(failure.__traceback__)
            raise


@contextlib.contextmanager
def _noting(context: Any) -> Iterator[list[str]]:
    """Collect the example's notes as if it were run to be shown."""
    from hypothesis import Verbosity, reporting, settings  # noqa: PLC0415

    notes: list[str] = []
    final, context.is_final = context.is_final, True
    try:
        with reporting.with_reporter(lambda note: notes.append(str(note))):
            yield notes
    finally:
        context.is_final = final
        if final or settings().verbosity >= Verbosity.verbose:
            _report(notes)


def _report(notes: list[str]) -> None:
    from hypothesis import reporting  # noqa: PLC0415 - the test has imported it

    for note in notes:
        reporting.report(note)


def _below(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without this file's frames at its beginning."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback
