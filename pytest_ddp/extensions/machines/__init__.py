"""Ranks on several machines, which agents start and a hub connects."""
