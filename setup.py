"""Makes the long description; all other metadata are in pyproject.toml.

On a package index README's relative links lead nowhere. With a ``Source`` in ``[project.urls]``
they become absolute; without one links become text, pictures go, and the sdist has the pages.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!\w+:)([^)]+)\)")


def long_description() -> str:
    """README, without a relative link."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    source = project.get("urls", {}).get("Source")

    def absolute(link: re.Match[str]) -> str:
        picture, text, target = link.groups()
        if source is not None:
            kind = "raw" if picture else "blob"
            return f"{picture}[{text}]({source}/{kind}/v{project['version']}/{target})"
        if picture:
            return ""
        return text if text == target else f"{text} (`{target}`)"

    return LINK.sub(absolute, (ROOT / "README.md").read_text(encoding="utf-8"))


setup(long_description=long_description(), long_description_content_type="text/markdown")
