"""WIN and CBK-03: data in windows that move between epochs, and the ranks of their workers."""

from ddp_conformance.windows.data import Announcement, Split, Stamp, WindowRun

__all__ = ["Announcement", "Split", "Stamp", "WindowRun"]
