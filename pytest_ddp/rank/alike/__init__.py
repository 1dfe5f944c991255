"""Whether a value is the same on all ranks, and where it differs: the ``ddp`` fixture's asserts."""
