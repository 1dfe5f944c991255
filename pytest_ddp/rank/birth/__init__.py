"""How a rank is born: what it shares with the others, and what it imports by itself.

Under torchrun each rank is an interpreter that imports everything after its place is known.
Here a host imports what is installed, once, and forks; the user's own code is imported in each
rank, after its environment is set. So a module's RANK, run id or temporary folder are each
rank's own, as on the cluster, and torch is imported once.

1. :mod:`ownership` tells the user's code from installed packages.
2. :mod:`wanted` reads off the test files which installed packages they import.
3. :mod:`sharing` has the host import those that may be shared.
4. :mod:`session` sets up pytest in the host, but for the user's plugins and conftests, which
   :mod:`owncode` loads in the rank.
5. :mod:`collection` collects a test's file in the rank when it first needs it.
"""
