"""``portable=`` on programs that rely on a collective that does not wait for all members."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.extensions.portable.reliance_examples import OPERATIONS, RELYING
from tests.acceptance.suite import Finished, Suite, flat

EXAMPLES = Path(__file__).parent / "reliance_examples.py"
FORMS = {"awaited": "broadcast"}


@pytest.fixture(scope="module")
def finished(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_reliance.py", EXAMPLES.read_text())
    return suite.run("--ddp-timeout=60", timeout=120)


def test_only_those_that_rely_on_it_are_red(finished: Finished) -> None:
    red = {
        name.rpartition("::")[2] for name, r in finished.results.items() if r.verdict != "passed"
    }
    relying = {f"test_relies_on_it[{operation}]" for operation in RELYING}
    assert red == relying | {"test_relies_on_it_between_groups"}
    assert len(finished.results) == len(red) + 2 * len(OPERATIONS) + 2


@pytest.mark.parametrize("operation", RELYING)
def test_the_finding_names_both_ranks(finished: Finished, operation: str) -> None:
    text = finished[f"test_relies_on_it[{operation}]"].text
    form = FORMS.get(operation, operation)
    assert (
        "not portable to nccl: a collective that does not wait: rank 1 relies on "
        f"{form} on world to end before rank 2 begins it"
    ) in flat(text)
    first = next(
        number
        for number, line in enumerate(EXAMPLES.read_text().splitlines(), 1)
        if line.endswith("# first")
    )
    assert f"rank 2 first: recv from rank 1 on world test_reliance.py:{first}" in flat(text)
    assert text.count("not portable to nccl") == 1
    assert "DDP-067" in text
