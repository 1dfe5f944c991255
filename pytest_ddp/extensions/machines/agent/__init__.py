"""One machine of a session on several: its host, its ranks, and the connection to the
coordinator."""
