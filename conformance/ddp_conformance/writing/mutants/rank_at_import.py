"""A module that reads its rank when it is imported, as settings modules do."""

from __future__ import annotations

import os

RANK = int(os.environ.get("RANK", "0"))
