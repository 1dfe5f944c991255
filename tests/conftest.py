"""What all test modules share: pytest's own fixture for tests of plugins, and a place for runs."""

from collections.abc import Iterator

import pytest

from tests.environment import TEMPORARY_ROOT

pytest_plugins = ["pytester"]


@pytest.fixture(scope="session", autouse=True)
def place_of_inner_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Inner runs of pytest make their temporary folders in that of the outer run.

    At its end, each pytest removes what ended runs have left in the folder that all runs of a user
    share. After a whole run of these tests that takes minutes, more than inner runs have.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TEMPORARY_ROOT, str(tmp_path_factory.mktemp("inner")))
        yield
