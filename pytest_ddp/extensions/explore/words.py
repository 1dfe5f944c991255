"""What users read about schedules. Pure."""

from __future__ import annotations
