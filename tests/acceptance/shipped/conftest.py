"""The machines of these tests, of which the second has a file system of its own."""

from __future__ import annotations

from tests.acceptance.machines.conftest import cluster

__all__ = ("cluster",)
