"""The ways out of a rank: by a signal or ``_exit`` with a stack, or as Python exits."""
