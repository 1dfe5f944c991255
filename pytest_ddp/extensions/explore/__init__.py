"""Races between ranks: predicted from two plain runs, shown by a run in which a thread is late.

In the pytest process ``plugin.py`` has the hooks and ``exploring.py`` the runs of a test, of which
``tally.py`` counts what the session's end says and ``replays.py`` keeps what failed. What decides
is pure: ``run_events.py`` is the record of a run, ``order.py`` what is ordered in it,
``conflicts.py`` what is not, ``trials.py`` which schedule comes next, ``schedule.py`` how it is
written, ``words.py`` what users read.

In each rank ``ranks/explored_run.py`` begins and ends a run. ``recording.py`` has its events and
``accesses.py`` what they use; ``file_points.py``, ``store_points.py``, ``thread_points.py`` and
``operation_points.py`` make them.
``holding.py`` holds a thread until ``resting.py`` of all ranks shows on the ``board.py``, which is
shared memory, that the others wait.
"""

EXTENSION = "explore"
"""The extension's name as a sender of data, as an argument of the mark, and for its data in
ranks."""
