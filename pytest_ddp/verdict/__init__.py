"""Turns the record of a test on all ranks into one report.

Runs in the controller. The stages are ``merge``, ``diagnosis`` and ``failure``; the other modules
help them.
"""
