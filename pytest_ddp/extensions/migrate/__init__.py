"""Finds out how a suite of distributed tests can run on ranks.

Nothing of the suite is imported or run: its files are parsed, and names are followed from a test to
the helpers, fixtures and base classes in files near it.
"""
