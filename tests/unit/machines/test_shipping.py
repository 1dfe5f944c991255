"""What node 0 sends, and what another machine makes of it."""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_ddp.agent.shipped import Shipped
from pytest_ddp.machines import listing, shipping
from pytest_ddp.machines.line import Frame, Kind
from pytest_ddp.machines.shipping import ShipError, Shipment, Told
from pytest_ddp.system.folder import Folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A rootdir, in which pytest was called."""
    root = tmp_path / "project"
    (root / "tests").mkdir(parents=True)
    (root / "tests" / "test_a.py").write_text("a")
    monkeypatch.chdir(root)
    return root


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Closes all shipments."""
    yield
    while _made:
        _made.pop().close()


_made: list[Shipment] = []


def pack(root: Path, limit: int = 1) -> Shipment:
    _made.append(shipping.pack(**shipping.asked(root, None, limit)))
    return _made[-1]


def told_of(shipment: Shipment) -> Told:
    return Told(**json.loads(shipment.announced().data))


class Machine:
    """Another one, with an agent's part that takes files."""

    def __init__(self, shipment: Shipment, folder: Folder) -> None:
        self.shipment = shipment
        self.problem = ""
        self.is_complete = False
        self.inward = self.outward = lambda frame: frame
        self.chunks = 0
        self._asked: list[int] = []
        self.selector: selectors.BaseSelector = selectors.DefaultSelector()
        self.shipped = Shipped(self, folder, self.selector)  # type: ignore[arg-type]

    def send(self, frame: Frame) -> None:
        """As a line does."""
        match frame.kind:
            case Kind.CHUNK:
                self._asked.append(frame.part)
            case Kind.PROBLEM:
                self.problem = frame.data.decode()
            case Kind.SHIPMENT:
                self.is_complete = True

    def take(self, *, most: int | None = None) -> None:
        """Take all that comes, or no more than so many parts."""
        self.shipped.take(self.shipment.announced())
        deadline = time.monotonic() + 60
        while not (self.is_complete or self.problem) and self.chunks != most:
            assert time.monotonic() < deadline
            while self._asked and self.chunks != most:
                self.chunks += 1
                self.shipped.take(self.shipment.chunk(self._asked.pop(0)))
            if self.selector.get_map():
                for key, _ in self.selector.select(0.05):
                    key.data()


@pytest.fixture
def unpacked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[Shipment], Machine]]:
    """Has a machine that has taken a shipment; the test's process is where its agent would be."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "environ", os.environ)
    before = dict(os.environ)
    folder = Folder()

    def take(shipment: Shipment) -> Machine:
        machine = Machine(shipment, folder)
        machine.take()
        return machine

    yield take
    folder.close()
    os.environ.clear()
    os.environ.update(before)


def test_files_come_with_modes_times_links_and_strange_names(
    root: Path, unpacked: Callable[[Shipment], Machine], tmp_path: Path
) -> None:
    (root / "run").write_text("run")
    (root / "run").chmod(0o750)
    os.utime(root / "run", (1, 1_000_000))
    (root / "ä\n b").write_text("strange")
    (root / os.fsdecode(b"\xff")).write_text("no text")
    (root / "empty").write_text("")
    (root / "random").write_bytes(content := os.urandom(700_000))
    (root / "inside").symlink_to("tests/test_a.py")
    (root / "absolute").symlink_to(root / "tests")
    (root / "dangling").symlink_to("tests/none")
    (tmp_path / "beside").write_text("of this machine")
    (root / "outside").symlink_to("../beside")
    os.mkfifo(root / "fifo")
    machine = unpacked(pack(root))
    assert machine.is_complete, machine.problem
    assert machine.chunks > 3
    copy = Path.cwd()
    assert copy.name == "project"
    assert copy != root
    assert (copy / "tests" / "test_a.py").read_text() == "a"
    assert (copy / "run").stat().st_mode & 0o777 == 0o750
    assert (copy / "run").stat().st_mtime == 1_000_000
    assert (copy / "ä\n b").read_text() == "strange"
    assert (copy / os.fsdecode(b"\xff")).read_text() == "no text"
    assert (copy / "empty").read_text() == ""
    assert (copy / "random").read_bytes() == content
    assert os.readlink(copy / "inside") == "tests/test_a.py"
    assert os.readlink(copy / "absolute") == "tests"
    assert os.readlink(copy / "dangling") == "tests/none"
    assert os.readlink(copy / "outside") == str(tmp_path / "beside")
    assert not (copy / "fifo").exists()


def test_variables_and_the_import_path_lead_to_the_copy(
    root: Path, unpacked: Callable[[Shipment], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = os.path.dirname(os.__file__)
    monkeypatch.setattr(sys, "path", [str(root), library, "/site-packages", f"{root}/src"])
    monkeypatch.setenv("DATA", f"{root}/data:/x")
    machine = unpacked(pack(root))
    copy = str(Path.cwd())
    assert os.environ["DATA"] == f"{copy}/data:/x"
    assert os.environ["PWD"] == copy
    metadata = str(Path(copy).parents[1] / "metadata")
    assert sys.path == [copy, library, f"{copy}/src", metadata, "/site-packages"]
    assert machine.shipped.home is not None
    assert machine.shipped.home(f"{copy}/x.py") == f"{root}/x.py"


def test_a_folder_below_the_rootdir_is_the_current_one_though_no_file_is_in_it(
    root: Path, unpacked: Callable[[Shipment], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "empty" / "one").mkdir(parents=True)
    monkeypatch.chdir(root / "empty" / "one")
    unpacked(pack(root))
    assert Path.cwd().parts[-3:] == ("project", "empty", "one")


def test_what_is_sent_is_what_was_there(
    root: Path, unpacked: Callable[[Shipment], Machine]
) -> None:
    shipment = pack(root)
    (root / "tests" / "test_a.py").write_text("later")
    unpacked(shipment)
    assert (Path.cwd() / "tests" / "test_a.py").read_text() == "a"


def test_a_session_that_ends_meanwhile_leaves_no_thread_that_writes(root: Path) -> None:
    (root / "random").write_bytes(os.urandom(900_000))
    folder = Folder()
    machine = Machine(pack(root), folder)
    machine.take(most=2)
    machine.shipped.stop()
    folder.close()
    assert not machine.is_complete


def test_an_archive_that_leads_elsewhere_writes_nothing_there(
    root: Path, unpacked: Callable[[Shipment], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "TREE", "../../..")
    machine = unpacked(pack(root))
    assert "OutsideDestinationError" in machine.problem


def test_what_an_editable_install_leads_to_is_imported_from_the_copy(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finder = types.ModuleType("__editable___pkg_finder")
    finder.__dict__["MAPPING"] = {
        "pkg": f"{root}/src/pkg",
        "a.b": f"{root}/lib/a/b",
        "other": "/elsewhere/other",
        "renamed": f"{root}/name",
    }
    monkeypatch.setitem(sys.modules, finder.__name__, finder)
    found = type("Finder", (), {"__module__": finder.__name__})
    redirecting = type("R", (), {"_redirections": {"flit": f"{root}/flit/__init__.py"}})
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, found, redirecting])
    monkeypatch.setattr(sys, "path", [f"{root}/first", os.path.dirname(os.__file__)])
    told = told_of(pack(root))
    assert told.first == [f"{root}/first"]
    assert told.then == [f"{root}/src", f"{root}/lib", str(root)]


def test_an_interpreter_in_the_rootdir_is_no_part_of_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", f"{root}/.venv")
    monkeypatch.setattr(sys, "path", [*sys.path, f"{root}/.venv/lib/site-packages"])
    told = told_of(pack(root))
    assert told.kept == [f"{root}/.venv"]
    assert told.then == []


def test_a_rootdir_in_the_interpreter_s_folder_is_sent_with_its_import_path(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /usr/src/app in a container, where Python's prefix is /usr."""
    monkeypatch.setattr(sys, "prefix", str(root.parent))
    monkeypatch.setattr(sys, "path", [str(root), *sys.path])
    told = told_of(pack(root))
    assert (told.kept, told.first) == ([], [str(root)])


@pytest.mark.parametrize("where", ["/", "home"])
def test_a_rootdir_that_nobody_can_mean(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    what = "the root of the file system" if where == "/" else "your home directory"
    with pytest.raises(ShipError, match=f"{what}, and nothing was sent: .*--rootdir names another"):
        pack(Path("/") if where == "/" else tmp_path)


def test_too_much_is_told_with_the_largest(root: Path) -> None:
    for number in range(5):
        (root / f"large{number}").write_bytes(bytes(number << 19))
    with pytest.raises(ShipError) as refused:
        pack(root, limit=2)
    assert (
        f"6 files in {root} have 5.0 MiB, and 2 MiB is the limit; the largest: large4 (2.0 MiB), "
        "large3 (1.5 MiB), large2 (1.0 MiB). Have git ignore" in str(refused.value)
    )


def test_a_file_that_cannot_be_read_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = root / "tests" / "test_a.py"

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)  # root reads everything
    with pytest.raises(ShipError, match=f"{file}: Permission denied. What tests do not need"):
        pack(root)


def test_a_socket_and_a_file_that_goes_meanwhile_are_left_out(
    root: Path, unpacked: Callable[[Shipment], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        monkeypatch.setattr(
            listing, "listed", lambda rootdir: ["gone", "socket", "tests/test_a.py"]
        )
        unpacked(pack(root))
    assert sorted(path.name for path in Path.cwd().rglob("*")) == ["test_a.py", "tests"]
