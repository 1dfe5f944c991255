"""Inner tests that register what is to happen at the end of their process.

Data for ``test_exiting.py``.
"""

from __future__ import annotations

HELPERS = """
    import os
    from pathlib import Path

    def place(name):
        rank = os.environ.get("RANK", "none")
        return Path(os.environ["LEFT"], f"{name}.{rank}.{os.getpid()}")

    def note(name, text="done"):
        # Unbuffered: nothing but the handler itself is to bring it there.
        place(name).write_bytes(text.encode())
"""
CONFTEST = """
    import atexit

    from helpers import note

    atexit.register(note, "atexit_of_conftest")
"""
INSTALLED = """
    import atexit
    import os
    from pathlib import Path

    IMPORTED_BY = os.getpid()

    def leave():
        name = f"installed.{os.environ.get('RANK', 'none')}.{os.getpid()}"
        Path(os.environ["LEFT"], name).write_text(f"{IMPORTED_BY}")

    atexit.register(leave)
"""
FOLDER = """
    import tempfile

    FOLDER = tempfile.TemporaryDirectory()
"""
LEAVES = """
    import atexit
    import concurrent.futures
    import logging
    import logging.handlers
    import multiprocessing
    import multiprocessing.util
    import os
    import tempfile
    import threading
    import time
    import weakref
    from multiprocessing import shared_memory

    import installed_folder
    import installed_party
    import pytest
    from helpers import place, note

    pytestmark = pytest.mark.ddp(world_size=2)
    KEEP = []

    class Thing:
        pass

    def finish_late(name):
        time.sleep(0.5)
        note(name)

    atexit.register(note, "atexit")
    atexit.register(print, "a print in a handler does no harm")
    THING = Thing()
    weakref.finalize(THING, note, "weakref")
    multiprocessing.util.Finalize(None, note, ("finalize",), exitpriority=1)

    DIRECTORY = tempfile.TemporaryDirectory()
    note("directory", DIRECTORY.name)

    HANDLER = logging.handlers.MemoryHandler(
        1000, flushLevel=99, target=logging.FileHandler(place("logging"), delay=True)
    )
    logging.getLogger("exiting").addHandler(HANDLER)
    logging.getLogger("exiting").error("buffered")

    def write(stream, text="buffered"):
        stream.write(text)
        KEEP.append(stream)

    write(place("text").open("w"))
    write(place("binary").open("wb"), b"buffered")
    write(place("updated").open("w+b"), b"buffered")

    EXECUTOR = concurrent.futures.ThreadPoolExecutor(1)
    EXECUTOR.submit(int).result()

    def accompany():
        while threading.main_thread().is_alive():
            time.sleep(0.02)
        note("companion")

    threading.Thread(target=accompany, name="companion").start()

    def begin_child():
        child = multiprocessing.get_context("fork").Process(
            target=time.sleep, args=(600,), daemon=True
        )
        child.start()

        def look():
            child.join(0)
            note("daemon", f"{child.exitcode}")

        # After the daemons have been ended, which has priority 0.
        multiprocessing.util.Finalize(None, look, exitpriority=-1)

    begin_child()

    def leave():
        memory = shared_memory.SharedMemory(create=True, size=100)
        KEEP.append(memory)
        note("memory", memory.name)
        atexit.register(note, "atexit_of_test")
        write(place("text_of_test").open("w"))
        EXECUTOR.submit(finish_late, "executor")

    def test_first():
        leave()

    @pytest.mark.ddp(isolate=True)
    def test_isolated():
        leave()

    def test_leaves_a_thread():
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()

    def test_last():
        leave()

    def test_folder_of_an_installed_package():
        # Ranks that have ended had it from the same import.
        assert os.path.isdir(installed_folder.FOLDER.name)
"""
TROUBLES = """
    import atexit
    import os
    import signal
    import threading
    import time

    import pytest
    import torch
    import torch.distributed as dist
    from helpers import note

    # Each test ends the ranks of the one before it.
    pytestmark = pytest.mark.ddp(world_size=2, isolate=True)
    atexit.register(dist.destroy_process_group)

    def broken():
        raise ValueError("cannot clean up")

    def broken_too():
        {}["nothing"]

    def hanging():
        time.sleep(600)  # here it hangs

    def endless():
        time.sleep(600)

    @pytest.fixture(autouse=True)
    def clocked(request):
        name = request.node.name.removeprefix("test_")
        note(f"began_{name}", str(time.time()))
        atexit.register(note, f"first_of_{name}")
        yield
        atexit.register(note, f"last_of_{name}")
        note(f"ended_{name}", str(time.time()))

    def test_raises():
        atexit.register(broken)
        atexit.register(broken_too)

    def test_hangs(ddp):
        if ddp.rank == 1:
            atexit.register(hanging)

    def test_after_the_hang():
        dist.all_reduce(torch.ones(1))

    def test_leaves_a_thread():
        threading.Thread(target=endless, name="stray").start()

    def test_after_the_thread():
        dist.all_reduce(torch.ones(1))

    def test_exits_in_a_handler(ddp):
        if ddp.rank == 0:
            atexit.register(os._exit, 5)

    def test_prints():
        atexit.register(print, "a print in a handler")
        atexit.register(os.write, 1, b"a write in a handler\\n")

    def test_is_killed(ddp):
        if ddp.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def test_last():
        dist.all_reduce(torch.ones(1))
"""
ENDLESS = """
    import os
    import threading
    import time

    import pytest
    from helpers import note

    def endless():
        time.sleep(600)  # here it stays

    if "RANK" in os.environ:
        threading.Thread(target=endless, name="endless").start()

    @pytest.mark.ddp(world_size=2, isolate=True)
    def test_beside_the_endless():
        note("ended_beside_the_endless", str(time.time()))
"""
AFTER_THE_ENDLESS = """
    import time

    import pytest
    from helpers import note

    @pytest.mark.ddp(world_size=2, isolate=True)
    def test_after_the_endless():
        note("began_after_the_endless", str(time.time()))
"""
INTERRUPTED = """
    import atexit
    import os
    import time

    import pytest
    import torch.distributed as dist
    from helpers import note

    def hang():
        note("hangs")
        time.sleep(600)

    if "RANK" in os.environ:
        if os.environ["HANGS"]:
            atexit.register(hang)
        atexit.register(note, "handler")

    @pytest.mark.ddp(world_size=2)
    def test_idle():
        pass

    @pytest.mark.ddp(world_size=3)
    def test_asleep():
        note("asleep")
        time.sleep(600)
"""
