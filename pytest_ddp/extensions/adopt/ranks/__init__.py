"""Code that runs in ranks and in served processes; it imports only what ranks may import.

A rank does the work of a harness's own process: :mod:`testcases`, :mod:`distributedtest_ranks`,
with :mod:`multiprocessing` and :mod:`harness_environment`.

Processes that a test starts by ``spawn`` are served: they are forks of a service with torch.

1. :mod:`served_process` does in a fork what multiprocessing does in a new interpreter.
2. :mod:`served_surroundings` restores the state of a new interpreter: streams, variables, signals.
3. :mod:`served_watch` has the instruments of a rank.
4. :mod:`served_messages` has the messages on served processes.
"""
