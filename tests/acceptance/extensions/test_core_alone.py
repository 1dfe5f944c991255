"""The core without ``pytest_ddp/extensions``: a copy of the checkout, on the core's own tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.environment import without_outer_run

ROOT = Path(__file__).parents[3]
OF_THE_CORE = (
    "cleanup/test_umask.py",
    "conformance/test_conformance_suggest.py",
    "devices/test_backends.py",
    "ends/test_crash_locator.py",
    "habits/test_ordinary_tests.py",
    "hangs/test_without_recorder.py",
    "plugins/test_built_in.py",
    "pools/test_given_up.py",
    "startup/test_missing_names.py",
    "terminal/test_output.py",
    "verdict/test_verdict_collectives.py",
)
"""Acceptance tests that use no extension, a file of each folder."""
NOT_OF_THE_CORE = {
    "ci": "the jobs of CI systems run the doctor and the summary",
    "extensions": "its tests are of extensions",
    "inner": "no tests",
}
"""Folders without such a file, and why."""
ALONE = """
from tests.acceptance.suite import Suite

TESTS = '''
    import os
    import sys
    from pathlib import Path

    import pytest

    FIRST = {}


    def is_alone():
        place = Path(sys.modules["pytest_ddp"].__file__).parent
        return str(place) == PLACE and not (place / "extensions").exists()


    def test_plain():
        assert is_alone()


    @pytest.mark.ddp(world_size=2)
    def test_ranks(ddp):
        assert ddp.gather(is_alone()) == [True, True]
        FIRST["pid"] = os.getpid()


    @pytest.mark.ddp(world_size=2)
    def test_same_ranks(ddp):
        assert FIRST["pid"] == os.getpid()
'''


def test_it_is_the_copy_that_runs(suite: Suite) -> None:
    suite.write("test_alone.py", TESTS.replace("PLACE", repr(PLACE)))
    suite.run().assert_outcomes(passed=3)


def test_wrong_marks(suite: Suite) -> None:
    suite.write("test_it.py", "import pytest\\n@pytest.mark.ddp(size=2)\\ndef test_it(): pass")
    assert "@pytest.mark.ddp(size=2): no such argument." in suite.run().flat
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package without its extensions, its tests, and what these need."""
    place = tmp_path_factory.mktemp("copy")
    for name in ("pyproject.toml", "conftest.py"):
        shutil.copy(ROOT / name, place)
    for name in ("pytest_ddp", "tests", "docs"):
        left_out = shutil.ignore_patterns("extensions", "__pycache__")
        shutil.copytree(ROOT / name, place / name, ignore=left_out)
    alone = f"PLACE = {str(place / 'pytest_ddp')!r}\n{ALONE}"
    (place / "tests" / "acceptance" / "test_alone.py").write_text(alone)
    # An interpreter that has imported this package already would not look for the copy.
    suite = place / "tests" / "acceptance" / "suite.py"
    text = suite.read_text()
    assert "self.fresh = False" in text
    suite.write_text(text.replace("self.fresh = False", "self.fresh = True"))
    return place


@pytest.mark.parametrize("file", ["test_alone.py", *OF_THE_CORE])
def test_tests_of_the_core_pass(copy: Path, file: str) -> None:
    _pass(copy, f"tests/acceptance/{file}")


def test_unit_tests_of_the_core_pass(copy: Path) -> None:
    folders = sorted(path for path in (ROOT / "tests" / "unit").iterdir() if path.is_dir())
    own = [path.name for path in folders if (copy / "pytest_ddp" / path.name).is_dir()]
    rooms = [f"tests/unit/{name}" for name in own]
    assert len(rooms) > 8
    # Short: a test needs a path with room for a socket.
    with tempfile.TemporaryDirectory() as short:
        _pass(copy, "-n", "2", f"--basetemp={short}/t", *rooms, "tests/unit/test_fixture.py")


def test_each_folder_has_a_file() -> None:
    folders = {path.name for path in Path(__file__).parents[1].iterdir() if path.is_dir()}
    covered = {file.partition("/")[0] for file in OF_THE_CORE}
    assert folders - {"__pycache__"} == covered | {*NOT_OF_THE_CORE}


def _pass(copy: Path, *tests: str) -> None:
    run = _python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr


def test_options_and_commands_are_those_of_the_core(copy: Path) -> None:
    options = _python(copy, "-m", "pytest", "--help").stdout
    assert "--ddp-world-size" in options
    assert "--ddp-adopt" not in options
    commands = _python(copy, "-m", "pytest_ddp").stdout
    assert "commands:" in commands
    assert "doctor" not in commands


def _python(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env=without_outer_run() | {"PYTHONPATH": str(copy)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
