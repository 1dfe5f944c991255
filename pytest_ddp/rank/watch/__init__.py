"""What is seen of a test while it runs: its phases, and where its rank stands."""
