"""What holds for every engine: the verdicts and texts of one machine."""

from __future__ import annotations

import pytest

from tests.acceptance.extensions.machines.test_verdicts import EXAMPLES, PLAIN, TEXTS, VERDICTS
from tests.acceptance.suite import Finished, Suite, flat


def examples(suite: Suite) -> Suite:
    """A suite with all examples in it."""
    suite.write("test_examples.py", EXAMPLES)
    suite.write("test_plain.py", PLAIN)
    return suite


class Verdicts:
    """The verdicts of the examples, as one engine ran them: a test file of an engine derives from
    it.
    """

    def test_every_test_has_a_verdict(self, session: Finished) -> None:
        assert len(session.results) == len(VERDICTS), session.tail()

    @pytest.mark.parametrize("name", VERDICTS)
    def test_verdict(self, session: Finished, name: str) -> None:
        assert session[name].verdict == VERDICTS[name], session[name].text

    @pytest.mark.parametrize("name", TEXTS)
    def test_text(self, session: Finished, name: str) -> None:
        assert TEXTS[name] in flat(session[name].text)
