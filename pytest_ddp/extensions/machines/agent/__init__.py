"""One machine's side of a session on several: its host, its ranks, and the way to the hub."""
