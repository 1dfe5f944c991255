"""``--ddp-report``, and how a report carries where its test ran."""

from __future__ import annotations

from pathlib import Path

from pytest_ddp.settings.options import Setting

RAN_ON = "ddp_ran_on"
"""An attribute of a ddp test's reports, which they keep on their way from an xdist worker: a list
of its world size and backend; of 0 and an empty text where it could not be planned."""


def _check_file(value: object) -> Path | None:
    if not isinstance(value, str):
        raise ValueError("it is the name of a file")
    if not value:
        return None
    path = Path(value).absolute()
    if path.is_dir():
        raise ValueError("there is a directory of this name; name a file")
    return path


REPORT = Setting(
    *("report", "FILE", "string", "", _check_file, ""),
    help="write one HTML page of the session: verdicts of ddp tests, and for each failure its "
    "text, what its code means, the picture of --ddp-trace, and a command that repeats it",
    group="results of ddp tests",
)
