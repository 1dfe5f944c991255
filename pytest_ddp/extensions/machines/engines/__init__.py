"""Who has the machines of a session, an engine a file; only the one asked for is imported."""
