"""README is true where nothing is installed but the wheel and what it asks the index for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.docs.test_docs import follow
from tests.release.building import ROOT, build_wheel, copy


def test_readme_is_true_with_the_wheel_alone(tmp_path: Path) -> None:
    wheel = build_wheel(copy(tmp_path / "source"), tmp_path)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    programs = tmp_path / "venv" / "bin"
    # The constraints choose a torch without CUDA libraries. Everything else of the environment is
    # kept, since it says where the package index is.
    install = [programs / "python", "-m", "pip", "install", "--quiet"]
    limits = ["--constraint", ROOT / "constraints.txt"]
    subprocess.run([*install, *limits, wheel], check=True, stdin=subprocess.DEVNULL, timeout=1200)
    directory = tmp_path / "project"
    directory.mkdir()
    follow(ROOT / "README.md", directory, programs)
