"""Known defects: what runs into one is not generated, unless asked for with ``--known``."""

from __future__ import annotations

KNOWN: dict[str, str] = {}
"""Name, as in ``Case.known``, and what goes wrong. Without its line here a case is generated."""
