"""What holds for every engine that sends files: the verdicts and texts of one machine."""

from __future__ import annotations

import pytest

from tests.acceptance.engines.verdicts import Verdicts
from tests.acceptance.shipped.project import ALL, FAILURES, VERDICTS
from tests.acceptance.suite import Finished, Result, flat


def result(session: Finished, name: str) -> Result:
    """That of a test whose parameters may be paths."""
    return session[name.format(tests=session.directory / "tests")]


class ShippedVerdicts(Verdicts):
    """Of the project's tests, as one engine ran them."""

    def test_every_test_has_a_verdict(self, session: Finished) -> None:
        assert len(session.results) == len(ALL) + len(VERDICTS), session.tail()

    @pytest.mark.parametrize("name", ALL)
    def test_verdict_of_files(self, session: Finished, name: str) -> None:
        found = result(session, name)
        assert found.verdict == ALL[name], found.text

    @pytest.mark.parametrize("name", FAILURES)
    def test_failure_text(self, session: Finished, name: str) -> None:
        assert FAILURES[name] in flat(result(session, name).text)

    @pytest.mark.parametrize("name", ["test_introspection", "test_helper_fails"])
    def test_failures_lie_where_node_0_has_the_file(self, session: Finished, name: str) -> None:
        (report,) = (found for found in result(session, name).reports if found.text)
        file = "helper.py" if "helper" in name else "test_files.py"
        assert report.path == str(session.directory / "tests" / file)

    def test_what_a_test_says_of_paths_stays_as_it_is(self, session: Finished) -> None:
        """Two paths that are not alike must not be shown as if they were."""
        text = result(session, "test_assert_of_paths").text
        assert "/shipped/tree/" in text
        assert f"{session.directory}/tests/test_files.py" in text

    def test_no_other_text_has_the_copy_s_paths(self, session: Finished) -> None:
        told = {"test_assert_of_paths", "test_missing_file", "test_fails_with_a_path"}
        for nodeid, found in session.results.items():
            assert "/shipped/" not in nodeid
            if nodeid.rpartition("::")[2].partition("[")[0] not in told:
                assert "/shipped/" not in found.text

    def test_warnings_are_of_node_0_s_files(self, session: Finished) -> None:
        assert f"{session.directory}/tests/test_files.py:" in session.stdout
        assert "UserWarning: from there" in session.stdout
