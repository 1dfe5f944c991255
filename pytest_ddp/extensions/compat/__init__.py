"""Adapters for single plugins, one file for each.

Most plugins need nothing of the kind: see :mod:`pytest_ddp.rank.startup.plugin_filter`. A file here
is for one whose work spans several tests, some of which run in ranks and some in the pytest
process.
"""
