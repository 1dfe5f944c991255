"""What a rank communicates: seen once, named once, and whoever needs it subscribes.

- ``table.py``: torch's names of each operation, and what is known of it. Imports no torch: the
  pytest process reads it, too.
- ``operation.py``: the record of an operation. ``describing.py`` makes it from arguments,
  ``pieces.py`` reads what goes to which rank, ``origins.py`` finds the user's line.
- ``methods.py`` and ``kernels.py``: all that stands between torch's Python and C++.
- ``stream.py``: who is called at an operation, and in which order. ``process.py`` has the stream of
  this process; ``works.py`` knows which operation a ``Work`` is of, ``wait.py`` what a thread waits
  for.
"""
