"""Tests that were written for other harnesses run as they are.

``--ddp-adopt=testcase`` and ``--ddp-everywhere`` make ddp tests of tests without a mark
(``adopted_items.py``); ``ranks/`` has what the processes of their harness would do.

``--ddp-adopt=spawn`` leaves the test in the pytest process and forks what it spawns::

    pytest process            spawn.py takes the place of multiprocessing's SpawnProcess._Popen;
                              popen.py pickles as that does
    spawn server (a process)  ranks/spawn_server_process.py imports torch, and forks
    served process (a fork)   ranks/served_process.py runs multiprocessing.spawn, probed like ranks

``watching.py`` probes served processes from a thread, ``joins.py`` adds to torch's exceptions, and
``judging.py`` fails a test that did not notice how a process ended. ``spawn_texts.py`` has the
texts.
"""
