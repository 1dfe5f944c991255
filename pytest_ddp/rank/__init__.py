"""Code that runs inside the host and the ranks.

It imports the protocol, the channel and the fixture, never controller code: what a
rank does must not depend on what the controller thinks.

PYTEST_DONT_REWRITE
"""
