"""The site: the pages of this folder, with a page for each guarantee (``make docs``).

Everything that a build reads is in the repository, so that it needs no network. The inventories of
Python and pytest are those of Debian's packages of documentation; torch's has only the names that
our docstrings use, and ``sphobjinv convert plain docs/inventories/torch.inv`` shows it.
"""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import guarantee_pages  # noqa: E402 - beside this file
import verdict_tables  # noqa: E402

project = "pytest-ddp"
author = "the authors of pytest-ddp"
release = version = version_of("pytest-ddp")

extensions = [
    *("myst_parser", "sphinx_copybutton", "sphinx_design"),
    *("sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.intersphinx"),
]
exclude_patterns = ["ci"]

# Pages are read on GitHub, too: alerts are its own, and its links go to headings.
myst_enable_extensions = ["alert"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"pytest-ddp {release}"
html_copy_source = False
html_show_copyright = False
html_favicon = "static/favicon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"

add_module_names = False
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 80

intersphinx_mapping = {
    "python": ("https://docs.python.org/3", "inventories/python.inv"),
    "pytest": ("https://docs.pytest.org/en/stable", "inventories/pytest.inv"),
    "torch": ("https://docs.pytorch.org/docs/stable", "inventories/torch.inv"),
}


def _lead_into_the_site(app: Sphinx, page: str, source: list[str]) -> None:
    """What GitHub shows in the repository has a page of its own here."""
    source[0] = source[0].replace("(../conformance/SPEC.md)", "(guarantees/index.md)")


def _colour_verdicts(app: Sphinx, page: str, source: list[str]) -> None:
    """GitHub shows neither colours nor titles, so that its page has words alone."""
    if page == "ecosystem":
        source[0] = verdict_tables.with_tables(source[0], HERE / "ecosystem.json")


def setup(app: Sphinx) -> None:
    """Sphinx calls it before it looks for pages."""
    guarantee_pages.write(HERE / "guarantees")
    app.connect("source-read", _lead_into_the_site)
    app.connect("source-read", _colour_verdicts)
