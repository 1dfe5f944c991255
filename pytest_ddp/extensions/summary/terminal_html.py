"""Text as a terminal shows it, with colours, as HTML."""

from __future__ import annotations

import re
from html import escape

_SEQUENCE = re.compile(
    r"\x1b\[(?P<codes>[\d;]*)m"  # colours and bold
    r"|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FOREGROUND = {*range(30, 38), *range(90, 98)}
_EXTENDED = (38, 48)
"""Followed by the arguments of a colour of 256 or of 24 bits, which is left out."""

STYLE = """
:root { --blue: #0550ae; --magenta: #8250df; --cyan: #0a6e7c; }
@media (prefers-color-scheme: dark) { :root {
  --blue: #79b8ff; --magenta: #d2a8ff; --cyan: #56d4dd; } }
.t1 { font-weight: 700; }
.t31, .t91 { color: var(--bad); } .t32, .t92 { color: var(--good); }
.t33, .t93 { color: var(--waits); } .t34, .t94 { color: var(--blue); }
.t35, .t95 { color: var(--magenta); } .t36, .t96 { color: var(--cyan); }
.t2, .t90 { color: var(--soft); }
"""


def html_of(text: str) -> str:
    """The text with its colours as spans; other sequences of control characters are left out."""
    parts: list[str] = []
    style: tuple[int, ...] = ()
    at = 0
    for found in _SEQUENCE.finditer(text):
        parts.append(_span(text[at : found.start()], style))
        at = found.end()
        if found["codes"] is not None:
            style = _changed(style, [int(code or 0) for code in found["codes"].split(";")])
    return "".join([*parts, _span(text[at:], style)])


def _changed(style: tuple[int, ...], codes: list[int]) -> tuple[int, ...]:
    """The style after these codes: at most one colour, and what is bold or dim."""
    left = iter(codes)
    for code in left:
        if code == 0:
            style = ()
        elif code in _EXTENDED:
            # 5;N or 2;R;G;B
            for _ in range({5: 1, 2: 3}.get(next(left, 0), 0)):
                next(left, None)
        elif code == 22:
            style = tuple(one for one in style if one not in (1, 2))
        elif code in (1, 2):
            style = (*(one for one in style if one != code), code)
        elif code in _FOREGROUND or code == 39:
            kept = tuple(one for one in style if one not in _FOREGROUND)
            style = kept if code == 39 else (*kept, code)
    return style


def _span(text: str, style: tuple[int, ...]) -> str:
    lines = text.replace("\r\n", "\n").replace("\r", "\n")  # a page cannot overwrite a line
    shown = escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", lines))
    names = " ".join(f"t{code}" for code in style)
    return f'<span class="{names}">{shown}</span>' if names and shown else shown
