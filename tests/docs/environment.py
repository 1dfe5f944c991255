"""The environment of the commands on a page."""

import os


def of_a_reader() -> dict[str, str]:
    """That of the tests, without what speaks of them to pytest, or of a CI job.

    In a CI job the texts are 80 columns wide, whatever the width of the page.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTEST") and name not in ("CI", "BUILD_NUMBER")
    }
