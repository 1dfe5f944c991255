"""``portable=``: says of a test that is green on gloo that it would hang or go wrong on NCCL.

In each rank an :class:`~pytest_ddp.extensions.portable.watch.OperationWatch` is there from a test's
set-up to its teardown. For each operation it makes an
:class:`~pytest_ddp.extensions.portable.events.IssuedOperation`, and notifies detectors when it is
issued, when the caller gets its handle, when a thread has waited for it, and when the handle is
gone without a wait. A detector is one file; what it sends after the test is judged in the pytest
process, for all ranks together, by the function beside it in
:data:`~pytest_ddp.extensions.portable.judges.JUDGES`.

===================== ======================================================================
``options.py``        the setting, its checks, and which backend a group has in production
``watch.py``          the events, from the stream of operations
``events.py``         what a detector gets
``orders.py``         order between groups: the decider, without torch
``order_log.py``      and what it needs of each rank
``handles.py``        handles that were lost
``buffers.py``        buffers that are touched in flight, with ``extents.py`` for their bytes
``touches.py``        the mode that sees operators of torch meanwhile
``unspecified.py``    what reduce leaves on other ranks than its destination
``buffer_log.py``     and the findings
``differences.py``    what NCCL does otherwise: the table
``difference_log.py`` the calls and messages of a rank that are in it
``point_to_point.py`` messages of both ends, without torch
``first_batches.py``  the first operations of all members of a group, without torch
``detectors.py``      the list of detectors
``finding.py``        findings and their texts
``judges.py``         all ranks together, in the pytest process
===================== ======================================================================
"""
