"""The counts of ``test_contract.py`` on four ranks."""

from __future__ import annotations

import pytest

from tests.acceptance.extensions.comms.test_contract import demand_green, run_examples
from tests.acceptance.suite import Suite


@pytest.mark.parametrize("name", ["parallel", "torch"])
def test_records_are_what_was_communicated(suite: Suite, name: str) -> None:
    demand_green(run_examples(suite, name, "-k", "ws4"))
