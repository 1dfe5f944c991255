"""What runs inside a launched process: the user's entry, and the code that records it."""
