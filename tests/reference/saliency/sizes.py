"""What these tests agree on."""

from __future__ import annotations

SIZE = (16, 12)
"""The size of the images, width and height in pixels."""
