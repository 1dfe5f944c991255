"""The process groups of a rank: building, counting, giving up, and a journal of their calls."""
