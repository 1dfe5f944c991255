"""Run a user's code on ranks of its own, as torchrun would, and survive whatever it does.

A training entry makes its own process group, may exit, and is made to die. So it does not
run in the ranks of the test: rank 0 of the test forks processes for it from a server that
has imported torch and computed nothing, and watches over them.

1. :mod:`.order`: what a process is told; plain data. :mod:`.history`, :mod:`.journal`,
   :mod:`.evidence`: what it leaves, and :mod:`.endings`: how that is put into words.
2. :mod:`.process`: the process itself, from its environment to the sentinel, and what its code
   asks of torch, written down as it happens; ranks that are late, and ranks that die.
3. :mod:`.start`: start, wait, stop, and say how each one ended.
"""
