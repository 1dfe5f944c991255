"""Three tools that show where and why a model or a training run breaks, as functions and commands.

``crash_report`` starts a training entry on several ranks and says which one died first, of
what, in which phase, at which line, in which operator. ``first_failing_block`` grows a model
block by block until it fails. ``audit_in_place`` tells in-place work on activations, which is
harmless under DDP, from writes to parameters, which are not.

``python -m ddp_reference.diagnosis crash|bisect|audit`` are the commands.
"""

from .audit import Finding, audit_in_place
from .bisect import BlockReport, first_failing_block
from .launch import crash_report
from .report import CrashReport, RankEnd

__all__ = [
    "BlockReport",
    "CrashReport",
    "Finding",
    "RankEnd",
    "audit_in_place",
    "crash_report",
    "first_failing_block",
]
