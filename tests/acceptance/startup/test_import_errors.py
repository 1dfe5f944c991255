"""Imports that go wrong in a rank are verdicts, and modules are found as in plain pytest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite, flat

TEST = """
import os, sys, time
import pytest

AT_IMPORT

@pytest.mark.ddp(world_size=2)
def test_NAME(ddp):
    ddp.barrier()
"""
ON_RANK_1 = 'if os.environ.get("RANK") == "1":\n    '
BROKEN = {
    "raises": ON_RANK_1 + 'raise RuntimeError("wrong on rank 1")',
    "exits": 'if "RANK" in os.environ:\n    sys.exit("no more")',
    "exits_on_one": ON_RANK_1 + 'sys.exit("no more")',
    "dies": ON_RANK_1 + "os._exit(3)",
    "sleeps": ON_RANK_1 + "time.sleep(1000)",
    "skips": ON_RANK_1 + 'pytest.skip("not here", allow_module_level=True)',
    "conftest": "",
}
"""What a file does while it is imported; of the last one, its conftest goes wrong."""
SHOWN = {
    "raises": ("rank 1", "test_raises.py:6", "RuntimeError: wrong on rank 1"),
    "exits": ("ranks 0-1", 'sys.exit("no more")', "SystemExit: no more"),
    "exits_on_one": ("rank 1", 'sys.exit("no more")', "SystemExit: no more"),
    "dies": ("rank 1 exited with code 3", "test_dies.py:6"),
    "sleeps": (
        "the import of sleeps/test_sleeps.py has not ended after 5 s on rank 1",
        "test_sleeps.py:6",
    ),
    "skips": ("rank 1", "test_skips.py:6", "not here"),
    "conftest": ("rank 1", "conftest.py:4", "RuntimeError: wrong on rank 1"),
}
LIMITED = """
    from pytest_ddp.session import run

    run.start_limit = lambda timeout: 5
"""
"""An import has five seconds, and the start of ranks as many as ever."""
CONFTEST = f"import os\n\n{ON_RANK_1}raise RuntimeError('wrong on rank 1')\n"


def write_test(suite: Suite, folder: str, name: str, at_import: str = "") -> None:
    source = TEST.replace("NAME", name).replace("AT_IMPORT", at_import)
    suite.write(f"{folder}/test_{name}.py", source)


@pytest.fixture(scope="module")
def broken(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    for name, at_import in BROKEN.items():
        write_test(suite, name, name, at_import)
        write_test(suite, f"{name}_next", f"after_{name}")
    suite.write("conftest.py", LIMITED)
    suite.write("conftest/conftest.py", CONFTEST)
    return suite.run()


@pytest.mark.parametrize("name", BROKEN)
def test_an_import_that_goes_wrong_is_an_error_that_names_rank_and_line(
    broken: Finished, name: str
) -> None:
    result = broken[f"test_{name}"]
    assert result.verdict == "error"
    for words in SHOWN[name]:
        assert words in flat(result.text)


@pytest.mark.parametrize("name", BROKEN)
def test_the_next_file_runs(broken: Finished, name: str) -> None:
    assert broken[f"test_after_{name}"].verdict == "passed"


def test_no_import_breaks_the_session(broken: Finished) -> None:
    assert broken.returncode == pytest.ExitCode.TESTS_FAILED
    assert "INTERNALERROR" not in broken.output


@pytest.fixture(scope="module")
def rootless(new_suite: Callable[[], Suite]) -> Finished:
    """The conftest of all tests goes wrong."""
    suite = new_suite()
    suite.write("conftest.py", CONFTEST)
    for name in ("first", "second"):
        write_test(suite, name, name)
    suite.write("test_plain.py", "def test_plain(): pass\n")
    return suite.run("--ddp-timeout=5")


@pytest.mark.parametrize("name", ["first", "second"])
def test_the_root_conftest_going_wrong_is_an_error_of_every_test(
    rootless: Finished, name: str
) -> None:
    result = rootless[f"test_{name}"]
    assert result.verdict == "error"
    for words in ("rank 1", 'conftest.py", line 4', "RuntimeError: wrong on rank 1"):
        assert words in flat(result.text)


def test_plain_tests_do_not_mind(rootless: Finished) -> None:
    assert rootless["test_plain"].verdict == "passed"
    assert "INTERNALERROR" not in rootless.output


# ---------------------------------------------------------------- found as in plain pytest

HELPED = """
import pytest
import helper

@pytest.mark.ddp(world_size=2)
def test_own_helper_in_FOLDER():
    assert helper.PLACE == "FOLDER"
"""
FROM_ASIDE = """
import pytest
import aside

@pytest.mark.ddp(world_size=2)
def test_module_of_another_folder():
    assert aside.PLACE == "between"
"""


@pytest.fixture(scope="module")
def helped(new_suite: Callable[[], Suite]) -> Suite:
    """Modules beside test files, in folders that pytest's import mode "prepend" brings."""
    suite = new_suite()
    suite.write("pytest.ini", "[pytest]\naddopts = -p no:asyncio\nmarkers = ddp: in plain pytest\n")
    for folder in ("a", "z"):
        suite.write(f"{folder}/helper.py", f"PLACE = {folder!r}\n")
        suite.write(f"{folder}/test_{folder}.py", HELPED.replace("FOLDER", folder))
    suite.write("between/aside.py", "PLACE = 'between'\n")
    suite.write("between/test_plain.py", "def test_plain(): pass\n")
    suite.write("z/test_aside.py", FROM_ASIDE)
    return suite


@pytest.fixture(scope="module")
def on_ranks(helped: Suite) -> Finished:
    return helped.run(extra=())


@pytest.fixture(scope="module")
def in_plain_pytest(helped: Suite) -> Finished:
    return helped.run("-p", "no:ddp", extra=())


@pytest.mark.parametrize(
    "test",
    ["test_own_helper_in_a", "test_own_helper_in_z", "test_module_of_another_folder"],
)
def test_modules_are_found_as_in_plain_pytest(
    on_ranks: Finished, in_plain_pytest: Finished, test: str
) -> None:
    assert on_ranks[test].verdict == in_plain_pytest[test].verdict
