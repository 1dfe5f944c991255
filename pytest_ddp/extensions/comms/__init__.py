"""``ddp.comms``: what a block of a test communicates, as records that the test asserts on."""

FOLDER = "__comms__"
"""Snapshots are in a folder of this name beside the tests."""
OPTION_GROUP = "communication of ddp tests"
"""The title in ``pytest --help``, for options of ``portable=``, too."""

UNLIKE_COMMUNICATION = "DDP-064"
"""The code of a test that communicates something else than it should."""
UNUSABLE_BLOCK = "DDP-065"
"""The code of a block that cannot be used so."""
