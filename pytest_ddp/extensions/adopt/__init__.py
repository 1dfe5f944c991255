"""Tests that were written for other harnesses, as they are."""
