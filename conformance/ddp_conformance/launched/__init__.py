"""Run a user's code on ranks of its own, as torchrun would, and survive all that it does.

A training entry makes its own process group, may exit, and is made to die. So it does not
run in the ranks of the test: servers that have imported torch and computed nothing fork
processes for rank 0 of the test, which watches over them. All of them have one parent.

1. :mod:`.order`: the orders of a process; plain data. :mod:`.history`, :mod:`.journal`,
      :mod:`.evidence`: the records that it leaves. :mod:`.endings`: how ranks ended, in words.
   2. :mod:`.process`: the process itself, from its environment to the record of its return. It
      records its code's calls of torch as they happen, and makes ranks late or lets them die.
   3. :mod:`.start`: start ranks, wait for them, stop them, and record how each one ended.
"""
