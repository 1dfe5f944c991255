"""What runs in ranks and in served processes; of the core it imports what ranks may.

In place of what a harness's own processes would do, a rank does it: :mod:`testcases`,
:mod:`distributedtest`, with :mod:`multiprocessing`, :mod:`environment` and :mod:`ends`.

Processes that a test starts by ``spawn`` are served: forks of a service that has torch already.

1. :mod:`service` imports what such processes may share, and forks them.
2. :mod:`life` makes of a fork what multiprocessing makes of a new interpreter.
3. :mod:`surroundings` is what an interpreter has from its start: streams, variables, signals.
4. :mod:`watch` are the rank's instruments in it.
"""
