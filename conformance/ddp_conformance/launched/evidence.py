"""What a rank has written about its end: phase, place, exception."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ddp_conformance.framework.failures import in_words
from ddp_conformance.framework.places import is_ours
from pytest_ddp.outcome import stack_dumps
from pytest_ddp.protocol import status_page
from pytest_ddp.protocol.rank_status import phase_text

ERROR, FAULTS, PHASE = "error", "faults", "phase"
"""Files in the folder of a rank: the exception, faulthandler's stacks, the page."""

LONGEST = 100
"""Characters of an exception's text."""


@dataclass(frozen=True, slots=True)
class LastWords:
    """Empty where a rank has left nothing."""

    error: str = ""
    phase: str = ""
    site: str = ""


def leave_error(files: Path, error: BaseException) -> None:
    """Write down what the rank raised, before its process ends."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    listed = [(frame.filename, frame.lineno or 0, frame.name) for frame in frames]
    (files / ERROR).write_text(json.dumps([shortened(in_words(error)), listed]))


def shortened(text: str) -> str:
    """The text without gloo's first words, a path of its sources, and without its advice."""
    text = re.sub(r"\[/\S*/gloo/\S+\] ?", "", text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."


def last_words(files: Path) -> LastWords:
    """What the rank was doing when it ended."""
    phase = phase_text(status_page.read(files / PHASE).phase[1:])
    if (files / ERROR).exists():
        error, frames = json.loads((files / ERROR).read_text())
        return LastWords(error, phase, _users(stack_dumps.Frame(*frame) for frame in frames))
    stacks = files / FAULTS
    text = stacks.read_text(errors="replace") if stacks.exists() else ""
    return LastWords("", phase, _users(stack_dumps.main_stack(text)) or _began(files))


def _began(files: Path) -> str:
    return stack_dumps.short_text(status_page.read(files / PHASE).site)


def _users(frames: Iterable[stack_dumps.Frame]) -> str:
    """The innermost frame of the user's code; empty without one."""
    for frame in frames:
        if stack_dumps.is_user_file(frame.file) and not is_ours(frame.file):
            return str(frame)
    return ""
