"""An interpreter that has imported pytest and torch, and forks for each program that it is to run.

A program of its own: what it imports is what every program finds imported. See
:mod:`tests.warm.interpreter` for what may be asked of it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import inspect
import itertools
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

from tests.warm.placing import ABOVE, customize, draw_other_numbers, enter, join, place, show

_IMPORTED = (
    *("torch", "torch.distributed", "torch._dynamo", "torch.utils._device", "numpy.random"),
    "torch.distributed.nn.functional",
)
_IMPORTED_IN_SESSION = (
    "pytest_ddp.session.controller",
    "pytest_ddp.rank.main",
    "pytest_ddp.rank.life",
)
_LENGTH = struct.Struct("!Q")
_MANY = 250
"""Descriptors in one message; the kernel takes no more than 253."""
_ENDS = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_HOST = "from pytest_ddp.rank.main import main"
_HUB = "from pytest_ddp.extensions.machines.main import main"
_AGENT = "from pytest_ddp.extensions.machines.agent.main import main"
_WORKER = "import sys;exec(eval(sys.stdin.readline()))"
_DOCTORS = "-m pytest -p ddp -p no:cacheprovider ", "-m pytest_ddp.extensions.doctor.probe"
"""What processes of pytest-ddp, workers of xdist and those of the doctor are to execute."""
_WITH_AN_HEIR = _HUB, _AGENT, _WORKER
"""Processes that start one of those with torch in turn."""
_PYTHON = sys.executable
"""A test may name another one that is to start what it starts."""
_SPAWNED = "--multiprocessing-fork"
_LAUNCHER = "torch.distributed.run"
"""The launcher, which starts modules and files by ``-u``; what else does that wants a fresh
interpreter."""
_CHANNELS: list[socket.socket] = []
"""Channels to all heirs of this process: closed later in one of them, they would be other
descriptors."""
Program = dict[str, Any]
"""``argv`` after the interpreter's name, ``cwd``, ``env``, ``umask``, in ``numbers`` where the
descriptors that come with it belong, how many ``heirs`` it needs for hosts and workers, and how
many for interpreters that multiprocessing ``spawns``; the ``network`` of its machine, None for
ours, and shell ``commands`` that make it one; or the process ``beside`` which it is to be, on
whatever machine that is."""


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
        """Have ``subprocess`` start hosts, workers of xdist, and the programs of the launcher,
        from here while there are any."""
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
        with_an_heir = any(what in code for code in args for what in _WITH_AN_HEIR)
        is_code = isinstance(given["args"], list) and args[1] != "-m"
        # pytest starts a coordinator, and a host for tests of other harnesses.
        return self._begin(
            ["-u"] * ("-u" in args) + args[args.index("-c") :] if is_code else args[1:],
            [number if end == -1 else end for number, end in enumerate(standard)],
            list(given["pass_fds"]),
            cwd=os.fspath(given["cwd"] or os.getcwd()),
            env=given["env"],
            heirs=int(with_an_heir) or 2 * ("-m pytest " in " ".join(args)),
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
            "beside": None,
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
    if launched and isinstance(args, tuple) and args[:2] == (_PYTHON, "-u"):
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
    """Be nobody until it is known who to be: the program ends through :class:`_Inherited`."""
    if lead:
        os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    os.closerange(3, channel.fileno())
    os.closerange(channel.fileno() + 1, ABOVE)
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
    place(descriptors, program["numbers"])
    if program["network"] is not None:
        enter(program["network"], program["commands"])
    if program["beside"] is not None:
        join(program["beside"])
    Heirs(program["heirs"], lead=True).stand_in(program["argv"])
    Heirs(program["spawns"], lead=False).stand_in_for_spawned()
    os.chdir(program["cwd"])
    os.umask(program["umask"])
    os.environ.clear()
    os.environ.update(program["env"])
    tempfile.tempdir = None  # TMPDIR may be another one
    draw_other_numbers()
    argv = program["argv"]
    sys.orig_argv = [sys.executable, *argv]
    show(sys.orig_argv, program["env"])
    flags = [*itertools.takewhile(("-u", "-B").__contains__, argv)]
    argv = argv[len(flags) :]
    if "-u" in flags or program["env"].get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    wants_none = program["env"].get("PYTHONDONTWRITEBYTECODE")
    sys.dont_write_bytecode = bool("-B" in flags or wants_none)
    listed = filter(None, program["env"].get("PYTHONPATH", "").split(os.pathsep))
    paths = [*dict.fromkeys(map(os.path.abspath, listed))]
    first = {"-c": "", "-m": program["cwd"]}.get(argv[0], os.path.dirname(os.path.abspath(argv[0])))
    sys.path[:] = [first, *paths, *sys.path]
    customize(paths)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if argv[0] == "-m":
        sys.argv = ["-m", *argv[2:]]
        return lambda: runpy._run_module_as_main(argv[1])  # type: ignore[attr-defined]
    if argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        return lambda: exec(_compiled(argv[1], "<string>"), vars(main))
    sys.argv = argv
    main.__file__ = argv[0]
    with open(argv[0], "rb") as file:
        code = _compiled(file.read(), argv[0])
    return lambda: exec(code, vars(main))


def _compiled(source: str | bytes, name: str) -> types.CodeType:
    return compile(source, name, "exec", dont_inherit=True)  # annotations of ours are not its


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
    # xdist sends its workers which path it found when it was imported, and a suite may have tests
    # of its own by these names.
    strangers = ("test_imports", "xdist", "tests")
    for name in [name for name in sys.modules if name.split(".")[0] in strangers]:
        del sys.modules[name]
    # What is found out once about each module is known to all forks as well: 0.1 s a rank.
    inspect.getmodule(compile("", "of no module", "exec"))
    sys.modules["pytest_ddp.rank.status.uncompiled"].hide_own_frames_now()
    importlib.import_module("pytest_ddp.rank.exits.exiting").skip_torch_finalizers()
    sys.stdout.flush()
    gc.collect()
    gc.freeze()
    importlib.import_module("pytest_ddp.system.processes").collapse()


def main() -> None:
    """Be the server, whose descriptor is the first argument, and in its forks their programs."""
    del sys.path[0]  # where it was found
    channel = socket.socket(fileno=int(sys.argv[1]))
    _import_all()
    try:
        program = serve(channel)
    except _Inherited as inherited:
        program = inherited.program
    if program is not None:
        _run(program)


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
