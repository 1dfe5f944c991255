"""The conditions in which parts run: simulated machines, clocks, one collective at a time."""
