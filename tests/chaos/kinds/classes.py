"""Classes whose fixture of class scope has a fault: which of their tests has to report it."""

from __future__ import annotations

import textwrap

from tests.chaos.case import ERROR, PASSED, TEARDOWN_ERROR, Draw, on
from tests.chaos.kinds.deaths import WAYS
from tests.chaos.kinds.failures import EXCEPTIONS

LIMIT = 10
"""Seconds for a test, of which a loaded machine needs some."""
FAULTS = {
    **EXCEPTIONS,
    **WAYS,
    "deadlock": "dist.barrier()",
    "timeout": "time.sleep(600)",
}


def faulty_class(draw: Draw) -> tuple[str, str, dict[str, frozenset[str]]]:
    """The source of ``TestClass``, its kind, and the truth of its two tests.

    A failed setup is one for each test of the class, and the teardown belongs to the last one.
    """
    size = draw.size(2)
    rank, kind, phase = draw.one(range(size)), draw.one(FAULTS), draw.one(["setup", "teardown"])
    fault = on([rank], FAULTS[kind]).replace("ddp.rank", "rank()")
    before, after = (fault, "pass") if phase == "setup" else ("total()", fault)
    mark = f"@pytest.mark.ddp(world_size={size}, timeout={LIMIT})"
    source = f"""# {kind} on {rank} in {phase} of a class fixture
{mark}
class TestClass:
    @pytest.fixture(scope="class", autouse=True)
    def of_class(self):
{textwrap.indent(before, "        ")}
        yield
{textwrap.indent(after, "        ")}

    def test_good_first(self, ddp):
        total()

    def test_good_second(self, ddp):
        total()
"""
    truths = {
        "setup": {"test_good_first": ERROR, "test_good_second": ERROR},
        "teardown": {"test_good_first": PASSED, "test_good_second": TEARDOWN_ERROR},
    }
    return source.rstrip(), f"class fixture: {kind} on {rank} in {phase}", truths[phase]
