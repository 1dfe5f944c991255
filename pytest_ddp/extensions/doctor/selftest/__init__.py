"""Test suites that ship with the package, whose verdicts are known, and sessions that run them."""
