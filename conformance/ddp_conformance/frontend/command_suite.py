"""The tests that ``python -m ddp_conformance`` runs, in its own process and in every rank."""

from __future__ import annotations

import pytest
from _pytest.outcomes import Failed

from ddp_conformance.framework.subjects import Subject
from ddp_conformance.framework.verdict import GuaranteeError, UndecidedError
from ddp_conformance.frontend.command_request import Request, cells_of
from ddp_conformance.frontend.pytest_frontend import BoundCheck, param


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each check, subject and world size."""
    request = Request.from_json(metafunc.config.getoption("conformance_request"))
    # All descriptions are of one part, so that ranks never hold the state of another one.
    shared = request.suggest
    params = [param(pair, size, share_ranks=shared) for pair, size in cells_of(request)]
    metafunc.parametrize(("subject", "check"), params)


def test_conforms(subject: Subject, check: BoundCheck) -> None:
    """The only test."""
    try:
        check(subject)
    except (GuaranteeError, UndecidedError) as error:
        # Without a traceback: none of its lines is the user's.
        raise Failed(str(error), pytrace=False) from None
