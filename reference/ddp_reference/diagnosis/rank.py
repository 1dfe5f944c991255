"""One rank of a training entry, prepared to tell what it was doing when it died.

``python -m ddp_reference.diagnosis.rank DIRECTORY PROGRAM [ARGUMENTS]``, started by
:func:`ddp_reference.diagnosis.crash_report`. PROGRAM is a file, or a module after ``-m``.
"""

import atexit
import os
import runpy
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

from pytest_ddp.protocol.status_page import StatusPage
from pytest_ddp.rank.exits import crash_stacks
from pytest_ddp.rank.status import landmarks
from pytest_ddp.rank.status.phase_stack import PhaseStack
from pytest_ddp.system.processes import die_with_parent


def main(directory: Path, program: list[str]) -> None:
    """Run the program; leave a file for its end, since exit code 0 is no evidence of one."""
    die_with_parent(os.getppid())
    files = directory / f"rank-{os.environ['RANK']}"
    crash_stacks.install(f"{files}.fault")  # torch is imported: its native stacks are on
    landmarks.install(PhaseStack(StatusPage(f"{files}.phase")))
    status = end_of(program, files)
    if status == 0:
        files.with_suffix(".done").touch()
    leave(status)


def end_of(program: list[str], files: Path) -> int:
    """Run the program; returns the exit code that ``python`` would give it."""
    try:
        run(program)
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return 1
    except BaseException as error:
        files.with_suffix(".error").write_text(last_words(error))
        traceback.print_exc()
        return 1
    return 0


def leave(status: int) -> NoReturn:
    """End as the interpreter does, but for taking itself down: the handlers of fatal signals
    must not outlive it."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    crash_stacks.exit_now(status)


def run(program: list[str]) -> None:
    """Run a program as ``python`` itself would."""
    if program[0] == "-m":
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = program
    sys.path[0] = str(Path(program[0]).resolve().parent)
    runpy.run_path(program[0], run_name="__main__")


def last_words(error: BaseException) -> str:
    """The exception, then its frames as ``file:line in function``, innermost first."""
    message = "".join(traceback.format_exception_only(error)).strip()
    frames = reversed(traceback.extract_tb(error.__traceback__))
    places = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
    return "\n".join([message.splitlines()[0], *places])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
