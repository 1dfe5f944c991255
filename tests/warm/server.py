"""An interpreter that has imported pytest and torch, and forks for each program it is told to run.

A program of its own: what it imports is what every program finds imported. See
:mod:`tests.warm.interpreter` for what may be asked of it.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import inspect
import json
import os
import re
import runpy
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import util
from typing import Any

_IMPORTED = (
    *("torch", "torch.distributed", "torch._dynamo", "torch.utils._device", "numpy.random"),
    "torch.distributed.nn.functional",
)
_IMPORTED_IN_SESSION = (
    "pytest_ddp.controller.controller",
    "pytest_ddp.rank.main",
    "pytest_ddp.rank.life",
)
_LENGTH = struct.Struct("!Q")
_MANY = 250
"""Descriptors in one message; the kernel takes no more than 253."""
_ENDS = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_HOST = "from pytest_ddp.rank.main import main"
_HUB = "from pytest_ddp.machines.main import main"
_AGENT = "from pytest_ddp.agent.main import main"
_WORKER = "import sys;exec(eval(sys.stdin.readline()))"
_DOCTORS = "-m pytest -p ddp -p no:cacheprovider ", "-m pytest_ddp.doctor.probe"
"""What processes of pytest-ddp, workers of xdist and those of the doctor are told to execute."""
_WITH_AN_HEIR = _HUB, _AGENT, _WORKER
"""Those that start one of these in turn."""
_NEW_NETWORK, _NEW_MOUNTS, _NEW_NAME = 0x40000000, 0x00020000, 0x04000000
"""``CLONE_NEWNET``, ``CLONE_NEWNS`` and ``CLONE_NEWUTS`` of ``linux/sched.h``."""
_OWN_SYS = "mount --make-rslave / && umount -l /sys && mount -t sysfs sysfs /sys && "
"""``/sys`` shows the interfaces of the network in which it was mounted."""
_PYTHON = sys.executable
"""A test may name another one that is to start what it starts."""
_SPAWNED = "--multiprocessing-fork"
_LAUNCHER = "torch.distributed.run"
"""Starts programs by ``-u -m``; what else does that wants a fresh interpreter."""
ROOM = "-" * 32768
"""A last argument and a variable of the server, whose places those of its forks are put into."""
_CHANNELS: list[socket.socket] = []
"""To all heirs of this process: closed later in one of them, they would be other descriptors."""
_ABOVE = 1000
"""From here up descriptors are kept while those below are put in their places."""

Program = dict[str, Any]
"""``argv`` after the interpreter's name, ``cwd``, ``env``, ``umask``, in ``numbers`` where the
descriptors that come with it belong, how many ``heirs`` it needs for hosts and workers, and how
many for interpreters that multiprocessing ``spawns``; the ``network`` of its machine, None for
ours, and shell ``commands`` that make it one."""


def send(channel: socket.socket, message: Any, descriptors: Sequence[int] = ()) -> None:
    """Send one message of JSON."""
    data = json.dumps(message).encode()
    socket.send_fds(channel, [_LENGTH.pack(len(data))], descriptors)
    channel.sendall(data)


def receive(channel: socket.socket) -> tuple[Any, list[int]] | None:
    """Receive one message and its descriptors; None if there will be no more."""
    head, descriptors, *_ = socket.recv_fds(channel, _LENGTH.size, _MANY, socket.MSG_WAITALL)
    if not head:
        return None
    data = b""
    (length,) = _LENGTH.unpack(head)
    while len(data) < length:
        data += channel.recv(length - len(data))
    return json.loads(data), descriptors


def serve(channel: socket.socket) -> Callable[[], None] | None:
    """Answer until the channel's end; return in a fork, with the program that it is to be."""
    send(channel, "ready")
    while (received := receive(channel)) is not None:
        message, descriptors = received
        if "reap" in message:
            _, status = os.waitpid(message["reap"], 0)
            send(channel, os.waitstatus_to_exitcode(status))
            continue
        begun, begins = os.pipe()
        pid = os.fork()
        if pid == 0:
            channel.close()
            os.close(begun)
            os.setsid()
            os.close(begins)
            return _become(message, descriptors)
        for descriptor in (begins, *descriptors):
            os.close(descriptor)
        os.read(begun, 1)  # its process group can be killed from here on
        os.close(begun)
        send(channel, pid)
    return None


class Heirs:
    """Children of a program, as warm as that, which become the interpreters that it starts.

    A host of pytest-ddp asks for its parent, and is waited for and killed as a child: the server
    cannot fork it.
    """

    def __init__(self, count: int, *, lead: bool) -> None:
        """
        Args:
            count: how many.
            lead: whether each is the leader of a session of its own.
        """
        self._waiting: list[tuple[int, socket.socket]] = []
        for _ in range(count):
            channel, theirs = socket.socketpair()
            _CHANNELS.append(channel)
            pid = os.fork()
            self._waiting.append((pid, channel))
            if pid == 0:
                while _CHANNELS:
                    _CHANNELS.pop().close()
                _wait(theirs, lead)
            theirs.close()

    def stand_in(self, argv: Sequence[str]) -> None:
        """Have ``subprocess`` start hosts, workers of xdist, and the modules of a program that is
        the launcher, from here while there are any."""
        launched = argv[:2] == ["-m", _LAUNCHER]
        # Unlike other hosts these stay in the session of what starts them.
        services = Heirs(int("--ddp-adopt" in str(argv)), lead=False)
        start = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        signature = inspect.signature(start)

        def start_or_inherit(process: Any, *args: Any, **kwargs: Any) -> None:
            given = signature.bind(process, *args, **kwargs).arguments
            stays = _HOST in str(given["args"]) and not given["start_new_session"]
            heirs = services if stays and services._waiting else self
            if not heirs._waiting or not _is_known(given["args"], launched):
                start(process, *args, **kwargs)
                return
            process.pid = heirs._be(given)
            process._child_created = True
            process._close_pipe_fds(*(given[end] for end in _ENDS))

        subprocess.Popen._execute_child = start_or_inherit  # type: ignore[attr-defined]

    def stand_in_for_spawned(self) -> None:
        """Have multiprocessing start its spawned processes from here while there are any."""
        module: Any = util
        start = module.spawnv_passfds

        def start_or_inherit(path: Any, args: Any, passed: Any) -> int:
            if not self._waiting or _SPAWNED not in args:
                return int(start(path, args, passed))
            return self._begin(args[args.index("-c") :], [0, 1, 2], sorted(map(int, passed)))

        module.spawnv_passfds = start_or_inherit

    def _be(self, given: dict[str, Any]) -> int:
        standard = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        args = list(given["args"])
        first = args.index("-m" if "-m" in args[1:3] else "-c")
        with_an_heir = any(what in code for code in args for what in _WITH_AN_HEIR)
        return self._begin(
            ["-u"] * ("-u" in args) + args[first:],
            [number if end == -1 else end for number, end in enumerate(standard)],
            list(given["pass_fds"]),
            cwd=os.fspath(given["cwd"] or os.getcwd()),
            env=given["env"],
            heirs=heirs_of(args) if args[first] == "-m" else int(with_an_heir),
        )

    def _begin(
        self,
        argv: list[str],
        standard: list[int],
        passed: list[int],
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        heirs: int = 0,
    ) -> int:
        pid, channel = self._waiting.pop(0)
        os.umask(umask := os.umask(0))
        program = {
            "argv": argv,
            "cwd": cwd or os.getcwd(),
            "env": dict(os.environ if env is None else env),
            "umask": umask,
            "numbers": [0, 1, 2, *passed],
            "heirs": heirs,
            "spawns": 0,
            "network": None,  # it is there already
        }
        with channel:
            send(channel, program, [*standard, *passed])
        return pid


def heirs_of(arguments: Sequence[str]) -> int:
    """How many hosts of pytest-ddp it may start, or xdist's workers or a launcher's programs with
    one each, or modules of the doctor's: its probe, its trial and two parts of its proof."""
    text = " ".join(arguments)
    if text.startswith("-m pytest_ddp doctor"):
        return 4 if "--prove" in text else 2
    wanted = re.search(r"(?:^| )(?:-n ?|--nproc-per-node=)(\d+)", text)
    return max(1, int(wanted[1])) if wanted else 1


def _is_known(args: Any, launched: bool) -> bool:
    """Whether this starts a host or a worker; what else a test starts might be anything."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    if launched and isinstance(args, tuple) and args[:3] == (_PYTHON, "-u", "-m"):
        return True
    if isinstance(args, list) and args[:2] == [_PYTHON, "-m"]:
        return " ".join(args[1:]).startswith(_DOCTORS)
    if not isinstance(args, list) or "-c" not in args:
        return False
    before, (_, code, *_) = args[: args.index("-c")], args[args.index("-c") :]
    if any(what in code for what in (_HOST, _HUB, _AGENT)):
        return before == [_PYTHON, *flags]
    return bool(code == _WORKER and before == [_PYTHON, "-u", *flags])


def _wait(channel: socket.socket, lead: bool) -> None:
    """Be nobody until told who to be: the program ends through :class:`_Inherited`."""
    if lead:
        os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    os.closerange(3, channel.fileno())
    os.closerange(channel.fileno() + 1, _ABOVE)
    received = receive(channel)
    channel.close()
    if received is None:
        os._exit(0)
    raise _Inherited(_become(*received))


class _Inherited(BaseException):
    """Carries the heir's program out of the loop that it was forked in."""

    def __init__(self, program: Callable[[], None]) -> None:
        self.program = program


def _become(program: Program, descriptors: Sequence[int]) -> Callable[[], None]:
    """Put this process into the state that a fresh interpreter would be in."""
    _place(descriptors, program["numbers"])
    if program["network"] is not None:
        _enter(program["network"], program["commands"])
    Heirs(program["heirs"], lead=True).stand_in(program["argv"])
    Heirs(program["spawns"], lead=False).stand_in_for_spawned()
    os.chdir(program["cwd"])
    os.umask(program["umask"])
    os.environ.clear()
    os.environ.update(program["env"])
    tempfile.tempdir = None  # TMPDIR may be another one
    _draw_other_numbers()
    argv = program["argv"]
    sys.orig_argv = [sys.executable, *argv]
    _show(sys.orig_argv, program["env"])
    if argv[0] == "-u":
        argv = argv[1:]
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    paths = filter(None, program["env"].get("PYTHONPATH", "").split(os.pathsep))
    first = "" if argv[0] == "-c" else program["cwd"]
    sys.path[:] = [first, *dict.fromkeys(map(os.path.abspath, paths)), *sys.path]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        return lambda: exec(compile(argv[1], "<string>", "exec"), vars(main))
    assert argv[0] == "-m", argv
    sys.argv = ["-m", *argv[2:]]
    return lambda: runpy._run_module_as_main(argv[1])  # type: ignore[attr-defined]


def _show(arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    """Have ``/proc`` show these: for a process that has cleared its environment.

    The kernel reads them where it put them when the server began, and moving that place takes a
    privilege. The C library has pointers to the variables that were there.
    """
    with open("/proc/self/stat") as file:
        # The 48th to the 51st field of proc(5); the list begins with the third.
        places = [int(field) for field in file.read().rpartition(")")[2].split()[45:49]]
    words = list(arguments), [f"{name}={value}" for name, value in variables.items()]
    for begin, end, shown in zip(places[::2], places[1::2], words, strict=True):
        text = b"".join(os.fsencode(word) + b"\0" for word in shown)
        # A reader finds nothing of another program, and less of this one if it has no room.
        ctypes.memmove(begin, text[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)


def _enter(network: str, commands: str) -> None:
    """Be on another machine, as by ``ip netns exec`` and ``unshare``."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{network}") as space:
        failed = libc.setns(space.fileno(), _NEW_NETWORK)
    if failed or libc.unshare(_NEW_MOUNTS | _NEW_NAME):
        raise OSError(ctypes.get_errno(), f"no namespaces in {network}")
    subprocess.run(["sh", "-c", _OWN_SYS + commands], check=True)


def _draw_other_numbers() -> None:
    """Each interpreter begins with seeds of its own; Python sees to that by itself."""
    import numpy as np
    import torch

    torch.default_generator.seed()
    np.random.seed()


def _place(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    kept = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for number in descriptors]
    for number in descriptors:
        os.close(number)
    for number, wanted in zip(kept, numbers, strict=True):
        os.dup2(number, wanted)
        os.close(number)


def _import_all() -> None:
    """Import torch, and by a session of one test all that pytest and its plugins need."""
    import pytest

    for name in _IMPORTED:
        importlib.import_module(name)
    path = list(sys.path)
    with tempfile.TemporaryDirectory() as directory:
        with open(os.path.join(directory, "pytest.ini"), "w") as ini:
            ini.write("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
        # Plugins are imported by pytest's own hand: it rewrites their assertions, and complains
        # in a later session of those that were imported without.
        imports = ", ".join(_IMPORTED_IN_SESSION)
        with open(test := os.path.join(directory, "test_imports.py"), "w") as source:
            source.write(f"def test_imports():\n    import {imports}\n")
        code = pytest.main(["-p", "no:cacheprovider", "--rootdir", directory, test])
    assert code == 0, "the session that imports pytest's plugins has failed"
    sys.path[:] = path
    # xdist tells its workers which path it found when it was imported.
    for name in [name for name in sys.modules if name.split(".")[0] in ("test_imports", "xdist")]:
        del sys.modules[name]
    # What is found out once about each module is known to all forks as well: 0.1 s a rank.
    inspect.getmodule(compile("", "of no module", "exec"))
    sys.modules["pytest_ddp.rank.watch.uncompiled"].hide_own_frames_now()
    sys.stdout.flush()
    gc.collect()
    gc.freeze()


def _main(descriptor: int) -> Callable[[], None] | None:
    channel = socket.socket(fileno=descriptor)
    del sys.path[0]  # this file's directory
    _import_all()
    try:
        return serve(channel)
    except _Inherited as inherited:
        return inherited.program


def _run(program: Callable[[], None]) -> None:
    """Run the program, and end as an interpreter does that need not take torch down: 0.4 s."""
    code: Any = 0
    try:
        program()
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        code = end.code or 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    program = _main(int(sys.argv[1]))
    if program is not None:
        _run(program)
