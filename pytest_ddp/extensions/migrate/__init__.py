"""What a suite of distributed tests needs to run on ranks.

Nothing of the suite is imported or run: its files are parsed, and names followed from a test to
the helpers, fixtures and base classes that lie beside it.
"""
