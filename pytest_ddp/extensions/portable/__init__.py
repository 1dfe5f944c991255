"""``portable=``: says of a test that is green on gloo that it would hang or go wrong on NCCL.

In each rank an :class:`~pytest_ddp.extensions.portable.watch.OperationWatch` is there from a test's
set-up to its teardown. For each operation of the stream it makes an
:class:`~pytest_ddp.extensions.portable.issued.IssuedOperation`, and passes it on when it is issued,
when the caller gets its handle, when a thread has waited for it, and when the handle is gone
without a wait. What a rank finds by itself and its log are sent after the test; the pytest process
compares the logs of all ranks.

===================== ======================================================================
``options.py``        the setting, its checks, and which backend a group has in production
``watch.py``          the events, from the stream of operations
``issued.py``         the record of an operation, and the log of a rank
``calls.py``          calls that are in the table of differences, handles that were lost
``touches.py``        the mode that sees operators of torch meanwhile, and what they find
``buffers.py``        buffers that are touched in flight, with ``extents.py`` for their bytes
``unspecified.py``    what reduce leaves on other ranks than its destination
``differences.py``    what NCCL does otherwise: the table
``orders.py``         all ranks: order between groups, and collectives that do not wait
``point_to_point.py`` all ranks: messages of both ends, and first batches of a group
``finding.py``        findings, with the codes of ``codes.py``
===================== ======================================================================
"""
