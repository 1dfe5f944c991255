"""The environment of the programs that tests start."""

import os

TEMPORARY_ROOT = "PYTEST_DEBUG_TEMPROOT"
"""Names the folder in which pytest makes its temporary folders."""


def without_outer_run(*also: str) -> dict[str, str]:
    """The environment of the tests, without what speaks of them to pytest, and without these
    variables.

    Kept is the folder for temporary files that ``conftest.py`` gives to all inner runs.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if (not name.startswith("PYTEST") or name == TEMPORARY_ROOT) and name not in also
    }
