"""Processes that a test starts by ``spawn``, served: forks of a service that has torch already.

1. :mod:`service` imports what such processes may share, and forks them.
2. :mod:`life` makes of a fork what multiprocessing makes of a new interpreter.
3. :mod:`surroundings` is what an interpreter has from its start: streams, variables, signals.
4. :mod:`watch` are the rank's instruments in it.
"""
