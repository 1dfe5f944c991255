"""Counts and leases GPUs, without torch.

The controller must not import torch, and it must not initialise CUDA, since ranks are forked from
its host. So GPUs are counted from the driver's information, and filtered by the variables that hide
some of them, as the vendor's own library does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import fcntl
import functools
import importlib.util
import math
import re
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_ddp.launch import gpu_vendors
from pytest_ddp.system.stdlib import os, select, shutil, subprocess, tempfile, time

# ------------------------------------------------------------------
# Locks on GPUs, whole or in equal shares, which the kernel releases when their process ends.
#
# A share is a range of bytes of the GPU's lock file, none of which is ever written: halves and
# thirds overlap as they would on the GPU, so that tests with shares of different sizes exclude each
# other exactly where they overlap. The ranges are locked as open file descriptions
# (``F_OFD_SETLK``), since locks of a process would not exclude its own other leases, and closing
# one lease would release all.
#
# Source: fcntl_locking(2), "Open file description locks".

_RANGE = 720_720
"""Bytes that represent a whole GPU: shares up to sixteenths divide it without a remainder."""
_FLOCK = "hhqqi4x"
"""``struct flock`` on 64-bit Linux: type, whence, start, length, process."""


@dataclass(frozen=True, slots=True)
class Share:
    """One of ``of`` equal parts of a GPU; 0 of 1 is all of it."""

    index: int = 0
    of: int = 1

    @property
    def suffix(self) -> str:
        """Suffix of the file name of the share's note."""
        return "" if self.of == 1 else f".{self.index + 1}-of-{self.of}"

    @property
    def words(self) -> str:
        return "" if self.of == 1 else f", share {self.index + 1} of {self.of},"

    def request(self, kind: int) -> bytes:
        """The ``struct flock`` for ``fcntl``; ``kind`` is its type."""
        start = self.index * _RANGE // self.of
        end = (self.index + 1) * _RANGE // self.of
        return struct.pack(_FLOCK, kind, os.SEEK_SET, start, end - start, 0)


def shares_of(ranks_per_gpu: int) -> list[Share]:
    """The shares of a GPU for tests with so many ranks on one GPU."""
    return [Share(index, ranks_per_gpu) for index in range(ranks_per_gpu)]


@dataclass(frozen=True, slots=True)
class LockFolder:
    """Takes locks in a folder, until ``held`` is closed, each with a note that names its holder."""

    folder: Path
    holder: str
    held: contextlib.ExitStack

    def take(self, name: str, share: Share = Share()) -> bool:
        """Lock a share of the resource ``name``; False if a part of it is locked already."""
        file = _opened(self.folder, name)
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, share.request(fcntl.F_WRLCK))
        except (BlockingIOError, PermissionError):  # the manual page allows either
            os.close(file)
            return False
        # The note after the lock: two processes would write one file.
        self.held.callback(os.close, file)
        note = self.folder / f"{name}{share.suffix}.holder"
        note.write_text(f"process {os.getpid()}" + f" ({self.holder})" * bool(self.holder))
        self.held.callback(note.unlink, missing_ok=True)
        return True


def holders(folder: Path, name: str) -> Iterator[tuple[Share, str]]:
    """The locked shares of the resource ``name``, with their holders according to the notes.

    A process that was killed leaves its note, but not its lock.
    """
    for note in sorted(folder.glob(f"{name}*.holder")):
        share = _share_of(note.name.removesuffix(".holder").removeprefix(name))
        if share is not None and _is_locked(folder, name, share):
            with contextlib.suppress(FileNotFoundError):  # released just now
                yield share, note.read_text()


def _share_of(suffix: str) -> Share | None:
    if not suffix:
        return Share()
    index, _, of = suffix[1:].partition("-of-")
    return Share(int(index) - 1, int(of)) if index.isdecimal() and of.isdecimal() else None


def _is_locked(folder: Path, name: str, share: Share) -> bool:
    file = _opened(folder, name)
    try:
        found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, share.request(fcntl.F_WRLCK))
    finally:
        os.close(file)
    kind: int = struct.unpack(_FLOCK, found)[0]
    return kind != fcntl.F_UNLCK


def _opened(folder: Path, name: str) -> int:
    return os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


_DRIVER = Path("/proc/driver/nvidia/gpus")
_SMI_OF_WSL = "/usr/lib/wsl/lib/nvidia-smi"
"""The path at which Windows installs ``nvidia-smi``; services and cron do not have it in PATH."""
_SMI_TIMEOUT = 60.0
"""Seconds for ``nvidia-smi``; a driver that must first wake eight GPUs takes some ten."""
LEASE_INTERVAL = 0.05
"""Seconds between two attempts to lease GPUs that are busy."""
_QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU by NVIDIA."""

    uuid: str
    """The UUID as ``nvidia-smi -L`` shows it, ``GPU-...``; the PCI address where the driver hides
    it."""
    instances: tuple[str, ...] = ()
    """Identifiers ``MIG-...`` of its instances; empty without MIG."""

    @property
    def name(self) -> str:
        """The name by which CUDA enumerates the GPU: its own, or that of its first MIG instance."""
        return self.instances[0] if self.instances else self.uuid


class Build(enum.Enum):
    """The kind of GPU for which the installed torch was built."""

    CUDA = enum.auto()
    ROCM = enum.auto()
    XPU = enum.auto()
    CPU = enum.auto()


def count_gpus() -> int:
    """Return the number of GPUs that a rank can use: visible, and of the kind of torch's build."""
    return len(visible_devices()) if torch_build() is not Build.CPU else 0


def device_kind() -> str:
    """Return torch's device type of the counted GPUs: ``cuda`` (AMD's too) or ``xpu``."""
    return "xpu" if torch_build() is Build.XPU else "cuda"


def visible_devices() -> tuple[str, ...]:
    """Return the names of the GPUs that torch would enumerate here, in its order."""
    match torch_build():
        case Build.ROCM:
            return gpu_vendors.select_visible_amd(gpu_vendors.physical_gpus(), os.environ)
        case Build.XPU:
            return gpu_vendors.select_visible_intel(
                _intel_cards(), os.environ.get("ZE_AFFINITY_MASK")
            )
        case Build.CUDA | Build.CPU:
            return select_visible(physical_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def select_visible(gpus: Sequence[Gpu], setting: str | None) -> tuple[str, ...]:
    """Apply ``CUDA_VISIBLE_DEVICES`` (None if unset) to the GPUs of the machine.

    As in CUDA, the list ends at the first entry that names no GPU, and a repeated
    entry makes it empty. A process sees whole GPUs or one MIG instance, never two.
    ``CUDA_DEVICE_ORDER`` is assumed to be the driver's: on a machine with different GPUs CUDA may
    number them in another order, but in the same order in all processes with the same setting,
    which is enough for the locks.

    Source: CUDA C++ programming guide, "CUDA Environment Variables"; MIG user guide,
    "CUDA Device Enumeration".
    """
    if not gpus:
        return ()
    entries = map(str, range(len(gpus))) if setting is None else setting.split(",")
    names: list[str] = []
    for entry in entries:
        name = _find(gpus, entry.strip())
        if name is None:
            break
        names.append(name)
    if len(set(names)) < len(names):
        return ()
    if names and names[0].startswith("MIG-"):
        return (names[0],)
    return tuple(name for name in names if not name.startswith("MIG-"))


def _find(gpus: Sequence[Gpu], entry: str) -> str | None:
    """Return the name of the GPU or instance of one entry of the list; None if there is none."""
    if entry.startswith("MIG-"):
        return entry
    if entry.startswith("GPU-"):
        matches = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        return matches[0].name if len(matches) == 1 else None
    number = re.match(r"\+?\d+", entry)  # CUDA reads "1gpu" as 1
    if number is None or int(number[0]) >= len(gpus):
        return None
    return gpus[int(number[0])].name


@functools.cache
def physical_gpus() -> tuple[Gpu, ...]:
    """Return NVIDIA's GPUs of the machine in the driver's order, read once.

    ``nvidia-smi`` is preferred to the driver's files: it lists MIG instances, and in a container
    only the GPUs that the container may use.
    """
    command = shutil.which("nvidia-smi") or shutil.which(_SMI_OF_WSL)
    if command is None:
        return _from_driver(_DRIVER)
    return parse_smi(_output_of(command, "-L"))


@functools.cache
def _intel_cards() -> tuple[str, ...]:
    command = shutil.which("xpu-smi")
    return gpu_vendors.parse_discovery(_output_of(command, "discovery", "-j")) if command else ()


def _output_of(*command: str) -> str:
    """The output of a vendor's tool; empty if it fails, since GPUs are of no use then."""
    try:
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SMI_TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout if run.returncode == 0 else ""


def parse_smi(listing: str) -> tuple[Gpu, ...]:
    """Read the output of ``nvidia-smi -L``: a line for each GPU, its MIG instances below."""
    gpus: list[Gpu] = []
    for line in listing.splitlines():
        found = re.search(r"\(UUID: ([^)]+)\)", line)
        if found and line.startswith("GPU "):
            gpus.append(Gpu(found[1]))
        elif found and gpus:
            gpus[-1] = Gpu(gpus[-1].uuid, (*gpus[-1].instances, found[1]))
    return tuple(gpus)


def _from_driver(folder: Path) -> tuple[Gpu, ...]:
    """Read the driver's own files, a folder for each GPU, named by its PCI address."""
    gpus = []
    for information in sorted(folder.glob("*/information")):
        uuid = re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)$", information.read_text(), re.MULTILINE)
        # The driver shows question marks until the GPU has been used.
        gpus.append(Gpu(uuid[1] if uuid else information.parent.name))
    return tuple(gpus)


@functools.cache
def torch_build() -> Build:
    """The build of torch, from the names of its libraries: to import torch takes a second."""
    spec = importlib.util.find_spec("torch")
    folders = (spec and spec.submodule_search_locations) or []
    names = {file.stem for folder in folders for file in Path(folder, "lib").glob("*torch_*")}
    libraries = {"hip": Build.ROCM, "cuda": Build.CUDA, "xpu": Build.XPU}
    found = (build for end, build in libraries.items() if f"libtorch_{end}" in names)
    return next(found, Build.CPU)


# ---------------------------------------------------------------------- leases


class LeaseError(Exception):
    """The GPUs did not come free in time; the text names their holders."""


@contextlib.contextmanager
def lease(
    count: int,
    directory: Path | None = None,
    *,
    limit: float = math.inf,
    holder: str = "",
    ranks_per_gpu: int = 1,
) -> Iterator[tuple[int, ...]]:
    """Hold ``count`` GPUs, or shares of GPUs, for the block.

    No other process of this user can lease them then. Waits while too few are free. A process must
    release a lease before it takes the next, else it waits for itself. The kernel releases the
    locks when the process ends; the lock files stay, because another process may wait for a lock on
    the file that would be removed.

    Args:
        count: how many; 0 touches nothing.
        directory: folder of the lock files, the same for all processes that compete; by default a
            private one of this user in the temporary directory.
        limit: seconds to wait at most.
        holder: shown to processes that wait in vain, for example a node id.
        ranks_per_gpu: number of shares of each GPU; 1 for whole GPUs.

    Yields:
        For each share the index of its GPU among the visible ones, in ascending order.

    Raises:
        ValueError: the visible GPUs have fewer.
        LeaseError: they did not come free within ``limit`` seconds.
        pytest.UsageError: the directory belongs to another user.
    """
    if count == 0:
        yield ()
        return
    claim = PendingLease(count, directory, limit=limit, holder=holder, ranks_per_gpu=ranks_per_gpu)
    with contextlib.closing(claim):
        yield _waited_for(claim)


def _waited_for(lease: PendingLease) -> tuple[int, ...]:
    try:
        while not (taken := lease.take()):
            # Polled, since the kernel has no wait for a lock with a time limit.
            select.select((), (), (), LEASE_INTERVAL)
        return taken
    except LeaseError as error:
        advice = "Start fewer xdist workers (-n), or give the test a longer timeout."
        raise LeaseError(f"{error}\n  {advice}") from None


class PendingLease:
    """A lease that is not complete yet, for callers that do other work while they wait.

    Only the holder of the queue lock collects GPUs, and releasing them needs no lock. So there is
    no deadlock, and a process that needs all GPUs is not starved by others that need one.
    """

    def __init__(
        self,
        count: int,
        directory: Path | None = None,
        *,
        limit: float = math.inf,
        holder: str = "",
        ranks_per_gpu: int = 1,
    ) -> None:
        """Begin to wait. This and :meth:`take` raise the exceptions of :func:`lease`."""
        devices = visible_devices()
        needed = math.ceil(count / ranks_per_gpu)
        if needed > len(devices):
            raise ValueError(f"{needed} GPUs are needed, {len(devices)} are visible")
        folder = directory or Path(tempfile.gettempdir(), f"pytest-ddp-gpus-{os.getuid()}")
        self._names = [re.sub(r"[^\w.-]", "_", device) for device in devices]
        self._count, self._ranks_per_gpu, self._limit = count, ranks_per_gpu, limit
        self._deadline = time.monotonic() + limit
        shares = shares_of(ranks_per_gpu)
        self._left = [(gpu, share) for gpu in range(len(devices)) for share in shares]
        self._taken: list[int] = []
        self._turn = contextlib.ExitStack()
        self._has_turn = False
        self._locks = LockFolder(_private(folder), holder, contextlib.ExitStack())

    def take(self) -> tuple[int, ...]:
        """Take the shares that are free; the GPU of each share once all are held, else empty."""
        queue = dataclasses.replace(self._locks, held=self._turn)
        self._has_turn = self._has_turn or queue.take(_QUEUE)
        if self._has_turn:
            for gpu, share in list(self._left):
                if len(self._taken) < self._count and self._locks.take(self._names[gpu], share):
                    self._taken.append(gpu)
                    self._left.remove((gpu, share))
        if len(self._taken) == self._count:
            self._turn.close()
            return tuple(sorted(self._taken))
        if time.monotonic() >= self._deadline:
            self.close()
            raise LeaseError(self._refusal())
        return ()

    def close(self) -> None:
        """Release all shares, and the place in the queue."""
        self._turn.close()
        self._locks.held.close()

    def _refusal(self) -> str:
        folder, parts = self._locks.folder, self._ranks_per_gpu
        shares = f" shares of 1/{parts}" if parts > 1 else ""
        what = f"{self._count}{shares} of GPUs" if shares else f"{self._count} GPUs"
        held = [
            f"{name}{share.words} is held by {process}"
            for name in self._names
            for share, process in holders(folder, name)
        ]
        waits = [f"{process} waits for GPUs before it" for _, process in holders(folder, _QUEUE)]
        words = f"{what} did not come free within {self._limit:.0f} s"
        first = f"{words}: tests of other pytest processes use them"
        return "\n".join([first, *(f"  {line}" for line in (*held, *waits))])


def _private(folder: Path) -> Path:
    """Create a directory in which no other user can hold or create locks."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise pytest.UsageError(
            f"{folder} must be a directory of your own, since GPUs are leased by lock files\n"
            f"  in it, but it is another user's or no directory. Remove it, or set TMPDIR to a\n"
            f"  directory that is the same for all test runs on these GPUs."
        )
    folder.chmod(0o700)
    return folder
