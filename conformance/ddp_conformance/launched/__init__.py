"""Run a user's code on ranks of its own, as torchrun would, and survive whatever it does.

A training entry makes its own process group, may exit, and is made to die. So it does not
run in the ranks of the test: rank 0 of the test forks processes for it from a server that
has imported torch and computed nothing, and watches over them.

1. :mod:`order`: what a process is told; plain data.
2. :mod:`launch`: start, wait, stop, and say how each one ended.
3. :mod:`live`: the process itself, from its environment to the sentinel.
4. :mod:`watch` and its parts: what the code asks of torch, written down as it happens.
5. :mod:`nemesis`: ranks that are late, and ranks that die.
6. :mod:`steps` and :mod:`dying`: what a process does for subjects that are no whole program.
"""
