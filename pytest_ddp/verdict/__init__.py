"""From what every rank reported, or left behind, to the one report of a test.

The controller's; the stages are ``merge``, ``diagnosis`` and ``failure``, and the rest serves them.
"""
