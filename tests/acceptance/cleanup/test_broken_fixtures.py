"""Fixtures that end in a way pytest does not expect leave nothing behind for the next test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import LOADFILE, UNDER_XDIST, Finished, Suite

CONFTEST = """
    import pytest

    class Odd(BaseException):
        pass

    ERRORS = {
        "GeneratorExit": GeneratorExit(),
        "KeyboardInterrupt": KeyboardInterrupt(),
        "SystemExit": SystemExit(3),
        "Odd": Odd("odd"),
        "BaseExceptionGroup": BaseExceptionGroup("both", [Odd("odd"), ValueError("plain")]),
    }

    @pytest.fixture
    def box(ddp):
        return [ddp.world_size]

    @pytest.fixture
    def breaks_down(box, error):
        yield
        raise ERRORS[error]

    @pytest.fixture
    def breaks_up(box, error):
        raise ERRORS[error]

    @pytest.fixture
    def finalized(request, box, error):
        def finalizer():
            raise ERRORS[error]
        request.addfinalizer(finalizer)

    @pytest.fixture(scope="module")
    def module_breaks():
        yield
        raise GeneratorExit

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(item):
        if item.name == "test_hook":
            raise RuntimeError("a hook's own error")
"""

BREAKING = """
    import pytest

    errors = pytest.mark.parametrize(
        "error", ["GeneratorExit", "KeyboardInterrupt", "SystemExit", "Odd", "BaseExceptionGroup"]
    )

    def check(ddp, box):
        pids.append(0)
        assert box == [ddp.world_size]
        box.append("used")

    pids = []

    {tests}

    @pytest.mark.ddp(world_size=2)
    def test_hook(ddp, box):
        check(ddp, box)

    @pytest.mark.ddp(world_size=2)
    def test_after_hook(ddp, box):
        check(ddp, box)
"""

KIND = """
    @errors
    @pytest.mark.ddp(world_size=2)
    def test_{name}_and_next(ddp, box, {name}, error):
        check(ddp, box)

    @pytest.mark.parametrize("number", [1, 2])
    @pytest.mark.ddp(world_size=2)
    def test_after_{name}(ddp, box, number):
        check(ddp, box)
        assert number == 1, "a failing check"

    @pytest.mark.ddp(world_size=3)
    def test_elsewhere_after_{name}(ddp, box):
        assert ddp.world_size == 3
        check(ddp, box)
"""

MODULE = """
    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_module(ddp, module_breaks, box):
        box.append("used")
"""

AFTER_MODULE = """
    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_after_module(ddp, box):
        assert box == [2]
"""

KINDS = ("breaks_down", "breaks_up", "finalized")
ERRORS = ("GeneratorExit", "KeyboardInterrupt", "SystemExit", "Odd", "BaseExceptionGroup")


@pytest.fixture(scope="module")
def finished(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("conftest.py", CONFTEST)
    tests = "".join(KIND.format(name=name) for name in KINDS)
    suite.write("test_a.py", BREAKING.replace("    {tests}\n", tests))
    suite.write("test_b.py", MODULE)
    suite.write("test_c.py", AFTER_MODULE)
    return suite.run(*LOADFILE)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_is_shown_with_the_test_that_had_it(finished: Finished, kind: str, error: str) -> None:
    result = finished[f"test_{kind}_and_next[{error}]"]
    assert result.verdict == ("error" if kind == "breaks_up" else "passed+error")
    assert error in result.text


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_tests_have_fixtures_of_their_own(finished: Finished, kind: str) -> None:
    assert finished[f"test_after_{kind}[1]"].verdict == "passed"
    assert finished[f"test_after_{kind}[2]"].verdict == "failed"
    assert finished[f"test_elsewhere_after_{kind}"].verdict == "passed"


@pytest.mark.parametrize("error", ERRORS)
def test_the_rank_is_replaced_with_a_warning(finished: Finished, error: str) -> None:
    words = f"a fixture that was broken off by {error}"
    assert any(words in warning for warning in finished.warnings)


def test_a_hook_that_keeps_pytest_from_tearing_down(finished: Finished) -> None:
    assert finished["test_hook"].verdict == "passed+error"
    assert finished["test_after_hook"].verdict == "passed"


@pytest.mark.skipif(UNDER_XDIST, reason="the fixture ends with another test there")
def test_a_wide_fixture_ends_with_its_last_test(finished: Finished) -> None:
    assert finished["test_module"].verdict == "passed+error"
    assert finished["test_after_module"].verdict == "passed"
