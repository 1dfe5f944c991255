"""LIF: a training program from its start to its end."""
