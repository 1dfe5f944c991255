"""Graph data in moving time windows, trained with Lightning and PyTorch Geometric.

A long archive of time bins lies on disk; each training epoch sees one date window
of it, and a callback moves that window between epochs. The modules, in the order
in which data flows: ``make_data`` (writes an archive), ``archive`` (files to time
bins), ``window`` (which dates come next), ``dataset`` (bins to graphs),
``sampling`` (graphs to ranks), ``datamodule``, ``callbacks``, ``model``,
``textlog``, ``config`` and ``__main__`` (the program).

Nothing is imported here, so that ``make_data`` starts without torch.
"""
