"""The installed modules that test files are found to import, by their text alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_ddp.protocol.host_messages import ImportedModules
from pytest_ddp.rank.startup.import_scan import ImportScan, ScannedImport
from pytest_ddp.rank.startup.ownership import CodeOwnership

FORMS = {
    "import numpy": [ScannedImport("numpy")],
    "import numpy.linalg as la": [ScannedImport("numpy.linalg")],
    "from numpy import linalg, array": [ScannedImport("numpy", ("linalg", "array"))],
    "if 1:\n    import numpy\nelse:\n    import h5py": [
        ScannedImport("numpy"),
        ScannedImport("h5py"),
    ],
    "try:\n    import numpy\nexcept ImportError:\n    import h5py": [
        ScannedImport("numpy"),
        ScannedImport("h5py"),
    ],
    "class A:\n    import numpy": [ScannedImport("numpy")],
    "def a():\n    import numpy": [],
    "async def a():\n    import numpy": [],
    "if TYPE_CHECKING:\n    import numpy\nelse:\n    import h5py": [ScannedImport("h5py")],
    "if typing.TYPE_CHECKING:\n    import numpy": [],
    "np = pytest.importorskip('numpy')": [ScannedImport("numpy")],
    "import_module('numpy')": [ScannedImport("numpy")],
    "import_module(name)": [],
    "pytest_plugins = ['xdist', 'numpy.testing']": [
        ScannedImport("xdist"),
        ScannedImport("numpy.testing"),
    ],
    "pytest_plugins = 'xdist'": [ScannedImport("xdist")],
    "import numpy\nimport numpy": [ScannedImport("numpy")],
    "this is no Python": [],
    "import no_such_module_anywhere": [ScannedImport("no_such_module_anywhere")],
}


@pytest.mark.parametrize("text", FORMS)
def test_forms_of_imports(tmp_path: Path, text: str) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(text)
    assert ImportScan(CodeOwnership().is_own).by([file]) == FORMS[text]


def test_own_modules_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages, submodules, relative imports and circles."""
    package = tmp_path / "followed"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("import json, numpy")
    (package / "one.py").write_text("from .deep import two\nfrom . import three")
    (package / "three.py").write_text("import followed.one\nimport h5py")
    (package / "deep" / "__init__.py").write_text("")
    (package / "deep" / "two.py").write_text("from ..three import anything\nimport PIL")
    (package / "unused.py").write_text("import lightning")
    file = tmp_path / "test_it.py"
    file.write_text("from followed import one")
    monkeypatch.syspath_prepend(tmp_path)
    wanted = ImportScan(CodeOwnership().is_own)
    assert wanted.by([file]) == [ScannedImport(n) for n in ("json", "numpy", "h5py", "PIL")]
    names = {path.relative_to(tmp_path).as_posix() for path in wanted.files}
    assert "followed/deep/two.py" in names
    assert "followed/unused.py" not in names


def test_folders_without_init_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nested" / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "nested" / "deep" / "deeper" / "one.py").write_text("import h5py")
    file = tmp_path / "test_it.py"
    file.write_text("from nested.deep.deeper.one import anything\nimport nested.deep.missing")
    monkeypatch.syspath_prepend(tmp_path)
    assert ImportScan(CodeOwnership().is_own).by([file]) == [ScannedImport("h5py")]


def test_a_finder_that_raises_is_for_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            raise RuntimeError(name)

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    file = tmp_path / "test_it.py"
    file.write_text("import nobody_has_this")
    assert ImportScan(CodeOwnership().is_own).by([file]) == [ScannedImport("nobody_has_this")]


@pytest.mark.parametrize(
    ("module", "own"),
    [
        ("json", False),
        ("sys", False),
        ("torch", False),
        ("pytest", False),
        ("pytest_ddp", False),  # ours, editable here, and what the host runs on
        ("ddp_reference", True),  # editable
        ("tests", True),
        ("no_such_module_anywhere", False),
    ],
)
def test_whose_a_module_is(module: str, own: bool) -> None:
    assert CodeOwnership().is_own(module) is own


@pytest.mark.parametrize(
    ("file", "modules", "found"),
    [
        ("test_it.py", ("test_it", "h5py", "h5py._proxy"), ["h5py", "h5py._proxy"]),
        ("test_other.py", ("own.read", "h5py", "own.unread"), ["h5py"]),
        ("", ("conftest", "own.read", "h5py"), ["h5py"]),
        ("test_other.py", ("own.unread", "h5py"), []),
        ("test_other.py", ("h5py",), []),
        ("test_other.py", ("own.gone", "h5py"), []),
    ],
)
def test_what_came_with_a_file_that_was_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    modules: tuple[str, ...],
    found: list[str],
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text("")
    (tmp_path / "own" / "read.py").write_text("import numpy")
    (tmp_path / "own" / "unread.py").write_text("import numpy")
    (tmp_path / "test_it.py").write_text("import own.read")
    monkeypatch.syspath_prepend(tmp_path)
    wanted = ImportScan(CodeOwnership().is_own)
    wanted.by([tmp_path / "test_it.py"])
    came = ImportedModules(str(tmp_path / file) if file else "", modules)
    assert wanted.came([came]) == [ScannedImport("numpy"), *map(ScannedImport, found)]
