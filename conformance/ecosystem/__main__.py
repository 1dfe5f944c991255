"""Look at all parts and write what was found: ``python -m conformance.ecosystem``.

Needs every library of the extra ``ecosystem``; ``make ecosystem`` sees to that. Nothing is written
if a verdict is another one than the parts declare.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from ddp_conformance.front import report

from conformance.ecosystem import page
from conformance.ecosystem.libraries import LIBRARIES

FOLDER = Path(__file__).parent
DOCS = FOLDER.parents[1] / "docs"


def main() -> int:
    """Return pytest's exit status."""
    missing = [library.distribution for library in LIBRARIES if not library.installed]
    if missing:
        print(f"not installed: {', '.join(missing)}; run make ecosystem", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as directory:
        verdicts = Path(directory) / "verdicts.json"
        # The page's own test is for later: it compares with the page that is there.
        status = _pytest(f"--ddp-conformance-report={verdicts}", f"--ignore={FOLDER}/test_page.py")
        if status:
            return status
        judged = json.loads(verdicts.read_text(encoding="utf-8"))["verdicts"]
    content = page.document(judged, LIBRARIES)
    report.write(DOCS / "ecosystem.json", content)
    (DOCS / "ecosystem.md").write_text(page.render(content), encoding="utf-8")
    return 0


def _pytest(*options: str) -> int:
    command = [sys.executable, "-m", "pytest", str(FOLDER), "-q", "-p", "no:cacheprovider"]
    parallel = ("-p", "ddp_conformance.plugin", "-n", "2", "--dist", "loadfile")
    return subprocess.run([*command, *parallel, *options], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
