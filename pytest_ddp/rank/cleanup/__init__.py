"""Restores and cleans up after a test, and reports what cannot be cleaned."""
