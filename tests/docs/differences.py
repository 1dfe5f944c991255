"""The table of what NCCL does otherwise, in docs/nccl.md.

``python -m tests.docs.differences`` writes it anew.
"""

from __future__ import annotations

from pathlib import Path

from pytest_ddp.extensions.portable.differences import DIFFERENCES, Difference

PAGE = Path(__file__).parents[2] / "docs" / "nccl.md"
_BEGIN = "| asked for | gloo | NCCL | instead | source |\n|---|---|---|---|---|\n"
_SECTIONS = {
    "Found": ("call", "messages"),
    "Green on NCCL, red on gloo, so that a test says it by itself": ("gloo",),
    "Only seen where there are GPUs, and not judged": ("device",),
}
END = "<!-- the end of the table -->\n"


def render() -> str:
    """The page as it has to be."""
    text = PAGE.read_text()
    before, _, rest = text.partition("Found:\n")
    _, _, after = rest.partition(END)
    tables = (
        f"{title}:\n\n{_BEGIN}{''.join(_row(row) for row in DIFFERENCES if row.judged in judged)}\n"
        for title, judged in _SECTIONS.items()
    )
    return before + "".join(tables) + END + after


def _row(row: Difference) -> str:
    cells = (row.what, row.gloo, row.nccl, row.instead, row.source)
    return "| " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    PAGE.write_text(render())
