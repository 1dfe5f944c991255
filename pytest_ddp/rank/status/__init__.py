"""What is observed of a test while it runs: its phases, and what its rank waits for."""
