"""What a CI job's page shows of a session of pytest: its result files, as Markdown."""
