"""SMP: which samples ranks deliver, how often, and in which order."""
