"""Headless Chromium, for tests that look at a page."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--force-device-scale-factor=1", "--window-size=1280,800"),
    "--virtual-time-budget=2000",
)
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_LIMIT = 120


class Browser:
    """Opens files of the disk; there is no network in it."""

    def __init__(self, program: str, directory: Path) -> None:
        self._program = program
        self._directory = directory
        self._runs = 0

    def dump(self, page: Path) -> str:
        """The page's document as the browser understood it."""
        return self._run("--dump-dom", page.as_uri())

    def screenshot(self, page: Path, *, dark: bool = False) -> Image.Image:
        """What a window of 1280 x 800 shows of it."""
        picture = self._directory / f"screenshot-{self._runs}.png"
        scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
        self._run(f"--screenshot={picture}", scheme, page.as_uri())
        return Image.open(picture).convert("RGB")

    def _run(self, *arguments: str) -> str:
        self._runs += 1
        profile = self._directory / f"profile-{self._runs}"
        finished = subprocess.run(
            [self._program, *_FLAGS, f"--user-data-dir={profile}", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr[-2000:]
        return finished.stdout


def find_browser(directory: Path) -> Browser:
    """The browser of this machine; without one, a skip whose reason is what to install."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip("no Chromium to look at the page with: apt-get install chromium")
    return Browser(program, directory)
