"""The machines of these tests."""

from tests.acceptance.machines.conftest import cluster

__all__ = ["cluster"]
