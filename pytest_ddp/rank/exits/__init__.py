"""The ways out of a rank: each leaves a stack, or is what Python's own would be."""
