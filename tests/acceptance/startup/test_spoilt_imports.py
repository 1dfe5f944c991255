"""What tests do to imports does not reach files that a warm rank imports after them.

Plain pytest imported those before any test ran, and is run beside as the measure.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite

WAYS = {
    "path_emptied": "sys.path.clear()",
    "path_shadowed": "sys.path.insert(0, str(Path(__file__).parent / 'shadow'))",
    "path_replaced": "sys.path = ['/no/such/place']",
    "finders_removed": "sys.meta_path.clear()",
    "hooks_removed": "sys.path_hooks.clear(); sys.path_importer_cache.clear()",
    "module_removed": "del sys.modules['shared']",
    "module_replaced": "sys.modules['shared'] = types.SimpleNamespace(KIND='fake')",
    "module_faked": "sys.modules['wanted'] = types.ModuleType('wanted')",
    "importer_patched": "importlib.import_module = None",
}
"""Name: how a test leaves imports, on one rank or on both, with no way back."""

SPOILS = """
    import importlib
    import sys
    import types
    from pathlib import Path

    import pytest

    import shared

    {mark}
    def test_spoils_{name}({ddp}):
        if {where}:
            {way}
"""
AFTER = """
    import pytest

    import near_{name}
    import shared
    from wanted import KIND

    {mark}
    def test_after_{name}({ddp}):
        assert (KIND, shared.KIND, near_{name}.KIND) == ("real",) * 3

    {mark}
    def test_after_that_{name}({ddp}):
        pass
"""
MARK = "@pytest.mark.ddp(world_size=2)"


def write(suite: Suite, where: str, *, mark: str, ddp: str) -> None:
    for name in ("shared", "wanted"):
        suite.write(f"{name}.py", "KIND = 'real'")
        suite.write(f"shadow/{name}.py", "KIND = 'shadow'")
    for name, way in WAYS.items():
        # A folder each, so that every file adds to sys.path.
        suite.write(
            f"{name}/test_a_{name}.py",
            SPOILS.format(name=name, where=where, mark=mark, ddp=ddp, way=way),
        )
        suite.write(f"{name}/test_b_{name}.py", AFTER.format(mark=mark, ddp=ddp, name=name))
        suite.write(f"{name}/near_{name}.py", "KIND = 'real'")


@pytest.fixture(scope="module", params=["ddp.rank == 1", "True"], ids=["one rank", "both ranks"])
def spoilt(request: pytest.FixtureRequest, new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    write(suite, request.param, mark=MARK, ddp="ddp")
    return suite.run(timeout=60)


@pytest.mark.parametrize("name", WAYS)
def test_files_after_it_are_imported_as_ever(spoilt: Finished, name: str) -> None:
    for test in ("spoils", "after", "after_that"):
        result = spoilt[f"test_{test}_{name}"]
        assert result.verdict == "passed", result.text


def test_the_tests_pass_in_plain_pytest_too(new_suite: Callable[[], Suite]) -> None:
    suite = new_suite()
    write(suite, "True", mark="", ddp="")
    suite.run(timeout=60).assert_outcomes(passed=3 * len(WAYS))
