"""The machines of these tests."""

from tests.acceptance.extensions.machines.conftest import cluster

__all__ = ["cluster"]
