"""The ``ddp`` fixture's asserts: is a value the same on all ranks, and where does it differ."""
