"""The environment of the commands on a page."""

from tests.environment import without_outer_run


def of_a_reader() -> dict[str, str]:
    """The environment of the tests, without what speaks of them to pytest, or of a CI job.

    In a CI job the texts are 80 columns wide, whatever the width of the page.
    """
    return without_outer_run("CI", "BUILD_NUMBER")
