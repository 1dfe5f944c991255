"""Write what was found of all parts: ``python -m conformance.ecosystem REPORT...``.

The reports are those of runs of the tests in this folder (``--ddp-conformance-report``), with every
library of the extra ``ecosystem``; ``make ecosystem`` sees to both. Nothing is written if a verdict
is another one than the parts declare.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_conformance.frontend import report

from conformance.ecosystem.frame import page
from conformance.ecosystem.frame.libraries import LIBRARIES

DOCS = Path(__file__).parents[2] / "docs"


def main(reports: Sequence[str]) -> int:
    """Return the exit status."""
    missing = [library.distribution for library in LIBRARIES if not library.installed]
    if missing:
        print(f"not installed: {', '.join(missing)}; run make ecosystem", file=sys.stderr)
        return 2
    read = [json.loads(Path(name).read_text(encoding="utf-8")) for name in reports]
    judged = [verdict for one in read for verdict in one["verdicts"]]
    content = page.document(judged, LIBRARIES)
    report.write(DOCS / "ecosystem.json", content)
    (DOCS / "ecosystem.md").write_text(page.render(content), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
