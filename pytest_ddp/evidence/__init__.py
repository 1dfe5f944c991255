"""What was seen of a test, and how the stacks of its ranks are read."""
