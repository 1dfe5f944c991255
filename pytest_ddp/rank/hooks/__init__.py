"""Adapts pytest and its plugins to run inside a rank."""
