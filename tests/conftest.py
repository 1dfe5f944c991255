"""What all test modules share: the fixture for tests of plugins, a place for runs, and patience."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.environment import TEMPORARY_ROOT

pytest_plugins = ["pytester"]

# A busy machine is no failure.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(scope="session", autouse=True)
def place_of_inner_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Inner runs of pytest make their temporary folders in that of the outer run.

    At its end, each pytest removes what ended runs have left in the folder that all runs of a user
    share. After a whole run of these tests that takes minutes, more than inner runs have.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TEMPORARY_ROOT, str(tmp_path_factory.mktemp("inner")))
        yield
