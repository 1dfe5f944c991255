"""Test suites of the package with known verdicts, and the sessions that run them."""
