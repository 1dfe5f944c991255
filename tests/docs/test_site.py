"""The site that ``make docs`` builds: no warning, no broken link, nothing loaded from elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from functools import cached_property
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import ddp_conformance
import pytest
from ddp_conformance.framework.registry import known_ids

import pytest_ddp

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LOOKED_UP = ("benchmarks", "ecosystem", "hookspecs", "kill-matrix", "parity", "troubleshooting")
"""Measured tables made by commands, pages with a section for each code or hook: read in parts."""
LONGEST = 1700
"""Words of any other page: it is read in ten minutes."""
_BUILT = pytest.mark.exhaustive
"""A build takes some 20 s of processor time."""
_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}


class Page(HTMLParser):
    """What a page defines, links to and loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.ids.add(attributes.get("id", ""))
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag == "link" and attributes.get("rel") not in {"index", "search", "next", "prev"}:
            self.loaded.append(attributes["href"])
        if attributes.get(_LOADED.get(tag, "")):
            self.loaded.append(attributes[_LOADED[tag]])


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def pages(self) -> dict[Path, Page]:
        return {path: Page(path) for path in sorted(self.folder.rglob("*.html"))}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet")
    built = subprocess.run(
        [*command, "-d", folder / "doctrees", DOCS, folder / "html"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return Site(folder / "html")


@_BUILT
def test_links_lead_to_pages_and_places(site: Site) -> None:
    broken = []
    for path, page in site.pages.items():
        for link in page.links:
            if re.match(r"(https?|mailto):", link):
                continue
            file, place = urldefrag(unquote(link))
            target = (path.parent / file).resolve() if file else path
            if not target.is_file() or (
                place and target in site.pages and place not in site.pages[target].ids
            ):
                broken.append(f"{path.relative_to(site.folder)}: {link}")
    assert not broken, "\n".join(broken)


@_BUILT
def test_nothing_is_loaded_from_elsewhere(site: Site) -> None:
    loaded = [(path, one) for path, page in site.pages.items() for one in page.loaded]
    for sheet in site.folder.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        loaded += [(sheet, one) for one in re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", text)]
    assert loaded
    foreign = [f"{path}: {one}" for path, one in loaded if re.match(r"(\w+:)?//", one)]
    assert not foreign, "\n".join(foreign)


@_BUILT
def test_each_guarantee_has_a_page_with_both_examples(site: Site) -> None:
    for each in known_ids():
        text = (site.folder / "guarantees" / f"{each}.html").read_text(encoding="utf-8")
        for heading in ("a-part-that-breaks-it", "a-part-that-keeps-it", "where-it-comes-from"):
            assert f'id="{heading}"' in text, f"{each}: {heading}"


@_BUILT
def test_public_names_are_on_the_page_of_the_api(site: Site) -> None:
    ids = site.pages[site.folder / "api.html"].ids
    for package in (pytest_ddp, ddp_conformance):
        for name in package.__all__:
            assert any(one.endswith(f".{name}") for one in ids), name


@_BUILT
def test_verdicts_of_other_libraries_are_coloured(site: Site) -> None:
    text = (site.folder / "ecosystem.html").read_text(encoding="utf-8")
    tables = "".join(re.findall(r'<div class="verdicts".*?</div>', text, re.DOTALL))
    shown: Counter[str] = Counter(re.findall(r'<td class="verdict ([\w-]+)"', tables))
    document = json.loads((DOCS / "ecosystem.json").read_text(encoding="utf-8"))
    parts = [part for library in document["libraries"] for part in library["parts"]]
    words = (word for part in parts for word in part["guarantees"].values())
    assert shown == Counter(word.replace(" ", "-") for word in words)
    titles = [unescape(title) for title in re.findall(r' title="(.*?)"', tables)]
    for part in parts:
        for breach in part["breaches"]:
            for name in breach["guarantees"]:
                reason = f"{name}: {part['guarantees'][name]}. {breach['why']}"
                assert any(title.startswith(reason) for title in titles), reason
    styles = (site.folder / "_static" / "site.css").read_text(encoding="utf-8")
    for word in ("kept", "broken", "refuses"):
        assert styles.count(f"--{word}: #") == 3, "light, dark by choice, dark by the system"


@_BUILT
@pytest.mark.parametrize(("page", "picture"), [("index", "deadlock"), ("hangs", "hang")])
def test_pictures_are_on_their_pages(site: Site, page: str, picture: str) -> None:
    loaded = site.pages[site.folder / f"{page}.html"].loaded
    (path,) = (one for one in loaded if one.endswith(f"/{picture}.svg"))
    assert (site.folder / path).is_file()


@pytest.mark.parametrize(
    "page",
    [page for page in sorted(DOCS.glob("*.md")) if page.stem not in LOOKED_UP],
    ids=lambda page: page.name,
)
def test_page_is_short(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").split()) <= LONGEST
