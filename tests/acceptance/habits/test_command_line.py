"""What pytest's own options and arguments mean in ranks."""

from __future__ import annotations

import re

import pytest

from tests.acceptance.suite import Suite


def test_ranks_have_the_arguments_of_the_pytest_process(suite: Suite) -> None:
    suite.write(
        "test_argv.py",
        """
        import sys
        import pytest

        IMPORTED = tuple(sys.argv)

        def test_here(pytestconfig):
            (pytestconfig.rootpath / "argv").write_text(repr(sys.argv))

        @pytest.mark.ddp(world_size=2)
        def test_there(pytestconfig):
            assert repr(sys.argv) == (pytestconfig.rootpath / "argv").read_text()
            assert tuple(sys.argv) == IMPORTED
            assert "test_argv.py" in sys.argv
        """,
    )
    suite.run("-q", "test_argv.py", extra=()).assert_outcomes(passed=2)
    suite.run("test_argv.py", "--ddp-start-method=spawn", extra=()).assert_outcomes(passed=2)


@pytest.mark.parametrize("option", ["--setup-only", "--setup-plan"])
def test_no_call_follows_the_setup(suite: Suite, option: str) -> None:
    suite.write(
        "test_planned.py",
        """
        import pytest

        @pytest.fixture
        def prepared(ddp):
            if "broken" in __name__:
                raise RuntimeError("in setup")

        @pytest.mark.ddp(world_size=2)
        def test_one(ddp, prepared):
            raise RuntimeError("called")

        @pytest.mark.ddp(world_size=2)
        def test_skipped(ddp, request):
            request.getfixturevalue("prepared")
        """,
    )
    suite.write("test_broken.py", (suite.directory / "test_planned.py").read_text())
    planned = suite.run(option, "test_planned.py")
    assert planned.returncode == 0
    planned.assert_outcomes()
    assert "SETUP    F prepared (fixtures used: ddp)" in planned.stdout
    assert "test_planned.py::test_one (fixtures used: ddp, " in planned.stdout
    broken = suite.run(option, "test_broken.py")
    broken.assert_outcomes(error=0 if option == "--setup-plan" else 1)


EVERYDAY = {
    *("backend", "world-size", "timeout", "seed", "output", "trace", "diagnosis"),
    *("adopt", "everywhere"),
}


def test_help_has_the_everyday_options_in_one_group(suite: Suite) -> None:
    groups = re.split(r"\n\n(?=\S)", suite.run("--help", extra=()).stdout)
    options = {
        group.splitlines()[0]: re.findall(r"^  --ddp-([\w-]+)", group, re.M) for group in groups
    }
    everyday = options.pop("tests on several torch.distributed ranks:")
    assert sorted(everyday) == sorted(EVERYDAY)
    assert not [title for title, names in options.items() if EVERYDAY & {*names}]


def test_the_mark_is_described_in_three_lines(suite: Suite) -> None:
    lines = suite.run("--markers", extra=()).stdout.splitlines()
    (mark,) = (line for line in lines if line.startswith("@pytest.mark.ddp("))
    assert len(mark) <= 4 * 100
    assert mark.endswith("docs/plugin.md#the-mark")
