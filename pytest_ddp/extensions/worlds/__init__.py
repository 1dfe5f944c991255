"""``worlds`` of the mark: one test at several world sizes and plans, held against one reference.

Each world is an item. The pytest process (``plugin.py``) plans its runs: the reference first, if it
has not run, and further runs of it under :mod:`.ranks.rounding` where a difference is more than the
last digits. In ranks ``ranks/across.py`` writes the reference's values and compares those of other
worlds with them; the distances go into tables, and ``parity.py`` judges these.

Files of one test, in a folder of the pytest process:

- ``reference/``, ``reference64/``: an ``index.json`` of what was compared, and a file of tensors
  for each comparison and each rank that holds some of them;
- ``tables/NAME-RANK.json``: what a rank has measured in the run with this name;
- ``carry/NAME/``: ``ddp.carry`` of that run.
"""

PARAMETER = "_ddp_world"
"""The fixture by which pytest parametrizes a test with its worlds."""
EXTENSION = "worlds"
"""The extension's name as a sender of data, and as an argument of the mark."""
