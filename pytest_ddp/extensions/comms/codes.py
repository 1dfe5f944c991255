"""The codes of what is wrong in a block. Imports no torch."""

from __future__ import annotations

from pytest_ddp.extensions.comms import UNLIKE_COMMUNICATION, UNUSABLE_BLOCK
from pytest_ddp.verdict.codes import Entry

ENTRIES = (
    Entry(
        UNLIKE_COMMUNICATION,
        "A test communicates something else than it should",
        (
            "AssertionError: ddp.comms: ... comes after ...",
            "AssertionError: ddp.comms: 1 more all_reduce of ... on ..., issued at ...",
            "AssertionError: ddp.comms: there is no ...; --ddp-update-comms writes it:",
        ),
        "assert_before or assert_matches_snapshot found other operations, or another order, than "
        "the test or the file beside it says.",
        (
            "The change under test communicates more, less or later than before.",
            "Another release of torch issues other operations: the text has both versions.",
            "The snapshot was never written, or its test was renamed.",
        ),
        (
            "Look at the table below the failure: each operation has its module and line.",
            "If it is meant, `--ddp-update-comms` writes the file anew; review its diff.",
        ),
    ),
    Entry(
        UNUSABLE_BLOCK,
        "A block of ddp.comms cannot be used so",
        (
            "RuntimeError: ddp.comms: blocks do not nest; leave the one opened at ... first",
            "RuntimeError: ddp.comms: a backend of group ... was called directly, ... times; ...",
            "ValueError: ddp.comms: no group ... on this rank; the groups are ...",
        ),
        "The block would record nothing, or too little, or the question has a name that this rank "
        "does not know.",
        (
            "Two blocks at the same time, one used twice, or one that its test did not leave.",
            "A backend that is called past torch's operators, which cannot be seen.",
            "A misspelt operation or group, or one of other ranks.",
        ),
        ("Do as the text says; it has the names that there are.",),
    ),
)
