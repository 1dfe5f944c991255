"""Runs tests that were written for other harnesses, unchanged.

``--ddp-adopt=testcase`` and ``--ddp-everywhere`` make ddp tests of tests without a mark
(``adopted_items.py``); in ``ranks/``, ranks do the work of the harness's own processes. For a suite
of torchrun, ``torchrun_environment.py`` sets the environment of rank 0 during collection.

``--ddp-adopt=spawn`` leaves the test in the pytest process and forks what it spawns::

    pytest process            spawn.py replaces multiprocessing's SpawnProcess._Popen;
                              popen.py pickles as the original does
    spawn server (a process)  spawn_server_process.py imports torch and forks;
                              process_watch.py probes what was forked
    served process (a fork)   ranks/served_process.py runs multiprocessing.spawn, probed like ranks

``watching.py`` reads what the watch reports, ``process_supervision.py`` adds to torch's exceptions,
and ``judging.py`` fails a test that did not notice how a process ended. Once torch has imported its
elastic rendezvous, ``elastic.py`` makes it faster in the pytest process.
"""
