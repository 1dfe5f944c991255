"""Records of what happened in a test, and parsers for the stacks of its ranks."""
