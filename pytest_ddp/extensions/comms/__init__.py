"""``ddp.comms``: what a block of a test communicates, as records that the test asserts on."""
