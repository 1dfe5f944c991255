"""What runs inside a launched process: the user's entry, and what is written down of it."""
