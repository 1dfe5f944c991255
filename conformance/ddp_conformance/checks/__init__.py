"""One module for each group of guarantees.

A group is two files: ``<group>.py`` holds the record half and the tuple ``CHECKS``,
``judge_<group>.py`` the judges: pure functions of histories.
"""
