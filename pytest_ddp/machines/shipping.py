"""The rootdir's files as node 0 sends them, for machines that do not have them (``--ddp-ship``)."""

from __future__ import annotations

import io
import stat
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from pytest_ddp.machines import listing
from pytest_ddp.machines.line import Frame, Kind
from pytest_ddp.system.own import json, os, tempfile

TREE, METADATA = "tree", "metadata"
"""Where in the archive the rootdir lies, and what pip has noted of packages in it."""
_CHUNK = 1 << 18
"""Bytes of the archive in a message, which is what others wait for on a slow network."""
_MIB = 1 << 20
_SHOWN = 3
_QUICK = 1
"""zlib's level: a source tree gets half as small in a third of the time."""


class ShipError(Exception):
    """These files cannot be sent; the text has the way out."""


@dataclass(frozen=True)
class Told:
    """What another machine has to know before the files come; as JSON."""

    rootdir: str
    real: str
    """The same without links."""
    folder: str
    """In which pytest was called: a path below the rootdir, empty for itself."""
    kept: list[str]
    """Below the rootdir, and not part of it: an interpreter's files."""
    first: list[str]
    """Folders in the rootdir that stand on ``sys.path`` before the standard library."""
    then: list[str]
    """Those behind it, which must come before installed packages: an older copy may be there."""
    links: dict[str, str]
    """Links that lead out of the rootdir, by path, with where they lead to."""


class Shipment:
    """All of it, as it was when the session began."""

    def __init__(self, told: Told, archive: IO[bytes]) -> None:
        self._told, self._archive = told, archive

    def announced(self) -> Frame:
        """What comes first."""
        return Frame(Kind.SHIPMENT, data=json.dumps(vars(self._told)).encode())

    def chunk(self, number: int) -> Frame:
        """A part of the archive, counted from 0; an empty one is behind the last."""
        data = os.pread(self._archive.fileno(), _CHUNK, number * _CHUNK)
        return Frame(Kind.CHUNK, part=number, data=data)

    def close(self) -> None:
        """Let go of it."""
        self._archive.close()


def asked(rootdir: Path, ini: Path | None, limit: int) -> dict[str, Any]:
    """What :func:`pack` has to know from pytest, as plain values."""
    return {"rootdir": str(rootdir), "ini": str(ini or ""), "limit": limit}


def pack(rootdir: str, ini: str, limit: int) -> Shipment:
    """Take up the files as they are now.

    Args:
        rootdir: pytest's.
        ini: its ini file; empty if there is none.
        limit: how many MiB they may have.

    Raises:
        ShipError: that cannot be.
    """
    if not hasattr(tarfile, "data_filter"):
        raise ShipError("it needs Python 3.11.4 or newer, which unpacks nothing elsewhere")
    real = os.path.realpath(rootdir)
    check_place(rootdir, real, os.getcwd(), ini)
    try:
        paths = listing.listed(rootdir)
    except listing.ListError as error:
        raise ShipError(str(error)) from None
    check_size(rootdir, paths, limit)
    archive = tempfile.TemporaryFile()  # without a name: nobody has to remove it
    try:
        links = _write(archive, rootdir, real, paths)
    except OSError as error:
        archive.close()
        file = error.filename or "the temporary directory"
        raise ShipError(
            f"{file}: {error.strerror}. What tests do not need stays here if git ignores it"
        ) from error
    interpreters = {os.path.realpath(place) for place in (sys.prefix, sys.base_prefix)}
    own = {place for place in interpreters if _below(place, real)}
    kept = sorted(own | {sys.prefix for _ in own})
    first, then = _import_path(real, own)
    folder = os.path.relpath(os.getcwd(), real)
    place = "" if folder == "." else folder
    return Shipment(Told(rootdir, real, place, kept, first, then, links), archive)


def check_place(rootdir: str, real: str, folder: str, ini: str) -> None:
    """See whether a rootdir is one that somebody may have meant to send.

    Raises:
        ShipError: it is not, or something that pytest needs lies outside of it.
    """
    way_out = (
        "pytest takes the folder of its ini file (pytest.ini, pyproject.toml), or what is common "
        "to its arguments; --rootdir names another one"
    )
    if real in ("/", os.path.realpath(os.path.expanduser("~"))):
        what = "the root of the file system" if real == "/" else "your home directory"
        raise ShipError(f"the rootdir is {rootdir}, {what}, and nothing was sent: {way_out}")
    for place, words in ((folder, "pytest was called in"), (ini, "the ini file is")):
        if place and not (_below(place, rootdir) or _below(os.path.realpath(place), real)):
            raise ShipError(
                f"{words} {place}, which is outside of the rootdir {rootdir}, and only that is "
                f"sent: {way_out}"
            )


def check_size(rootdir: str, paths: Iterable[str], limit: int) -> None:
    """See whether files are few enough.

    Raises:
        ShipError: they are not.
    """
    sizes = {path: _size(os.path.join(rootdir, path)) for path in paths}
    if (total := sum(sizes.values())) <= limit * _MIB:
        return
    large = (path for path in sizes if sizes[path] >= min(_MIB / 10, max(sizes.values())))
    largest = sorted(large, key=lambda path: -sizes[path])[:_SHOWN]
    shown = ", ".join(f"{path} ({_mib(sizes[path])})" for path in largest)
    raise ShipError(
        f"{len(sizes)} files in {rootdir} have {_mib(total)}, and {limit} MiB is the limit; the "
        f"largest: {shown}. Have git ignore what tests do not need (.gitignore), or raise "
        "--ddp-ship-limit"
    )


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f} MiB"


def _size(file: str) -> int:
    try:
        return os.lstat(file).st_size
    except OSError:
        return 0  # gone, or told when it is read


def _below(place: str, folder: str) -> bool:
    return place == folder or place.startswith(f"{folder}/")


# ---------------------------------------------------------------- the archive


def _write(archive: IO[bytes], rootdir: str, real: str, paths: Iterable[str]) -> dict[str, str]:
    """Write it; the links that lead out of the rootdir."""
    outside: dict[str, str] = {}
    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=_QUICK) as tar:
        for path in paths:
            file = os.path.join(rootdir, path)
            if not os.path.islink(file):
                _add(tar, file, f"{TREE}/{path}")
            elif (target := _target(file, (rootdir, real), path)).startswith("/"):
                outside[path] = target
            else:
                member = tarfile.TarInfo(f"{TREE}/{path}")
                member.type, member.linkname = tarfile.SYMTYPE, target
                tar.addfile(member)
        for folder in _metadata_of(real):
            for noted in folder.rglob("*"):
                name = noted.relative_to(folder.parent)
                _add(tar, str(noted), f"{METADATA}/{name}")
    archive.flush()
    return outside


def _add(tar: tarfile.TarFile, file: str, name: str) -> None:
    """Add a plain file, as long as it is when it is read: it may grow meanwhile."""
    try:
        about = os.stat(file)
        if not stat.S_ISREG(about.st_mode):
            return
        content = Path(file).read_bytes()
    except FileNotFoundError:
        return
    member = tarfile.TarInfo(name)
    member.size, member.mtime = len(content), about.st_mtime
    member.mode = stat.S_IMODE(about.st_mode)
    tar.addfile(member, io.BytesIO(content))


def _target(link: str, roots: Iterable[str], path: str) -> str:
    """Where a link leads to: relative inside of the rootdir, absolute outside of it."""
    told = os.readlink(link)
    for root in roots:
        here = os.path.dirname(os.path.join(root, path))
        place = os.path.normpath(os.path.join(here, told))
        if _below(place, root):
            return os.path.relpath(place, here)
    return place


# ---------------------------------------------------------------- what is imported


def _import_path(real: str, kept: Iterable[str]) -> tuple[list[str], list[str]]:
    """Folders of ``sys.path`` in the rootdir, before and behind the standard library."""
    # Others are words to the finder of an editable install.
    path = [os.path.realpath(entry) for entry in sys.path if not entry or os.path.isabs(entry)]
    library = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    border = min((path.index(entry) for entry in library if entry in path), default=len(path))

    def inside(entries: Iterable[str]) -> list[str]:
        own = (entry for entry in entries if _below(entry, real))
        return [*dict.fromkeys(e for e in own if not any(_below(e, place) for place in kept))]

    first = inside(path[:border])
    then = inside([*path[border:], *map(os.path.realpath, _redirected())])
    return first, [entry for entry in then if entry not in first]


def _redirected() -> Iterator[str]:
    """Where finders of editable installs look; others stand on ``sys.path`` anyway."""
    for finder in sys.meta_path:
        module = sys.modules.get(getattr(finder, "__module__", ""))
        # That of setuptools, and that of hatchling, flit and others.
        for known in (getattr(module, "MAPPING", None), getattr(finder, "_redirections", None)):
            for name, place in (known if isinstance(known, dict) else {}).items():
                end = "/" + str(name).replace(".", "/")
                file = str(place).removesuffix("/__init__.py").removesuffix(".py")
                if file.endswith(end):
                    yield file.removesuffix(end)


def _metadata_of(real: str) -> Iterator[Path]:
    """Folders in which pip has noted what is installed in the rootdir, to be edited there.

    They lie elsewhere. Packages ask for their own version there, and plugins are found by them.
    """
    for distribution in metadata.distributions():
        folder: Any = getattr(distribution, "_path", None)
        try:
            record = json.loads(distribution.read_text("direct_url.json") or "{}")
            place = unquote(urlsplit(record["url"]).path)
            is_edited = record["dir_info"]["editable"]
        except (ValueError, LookupError, TypeError):
            continue
        if is_edited and _below(os.path.realpath(place), real) and isinstance(folder, Path):
            yield folder
