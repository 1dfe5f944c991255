"""Code that runs in the host and in the ranks.

It imports the protocol, the channel and the fixture, never the controller's code: what a rank does
must not depend on the controller's state.

PYTEST_DONT_REWRITE
"""
