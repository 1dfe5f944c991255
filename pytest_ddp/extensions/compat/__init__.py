"""Adapters for single plugins, one file for each.

Most plugins need no adapter: see :mod:`pytest_ddp.rank.startup.plugin_filter`. Those that do have
work that spans several tests, some of which run in ranks and some in the pytest process.
"""
