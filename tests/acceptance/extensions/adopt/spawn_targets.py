"""What the processes of :mod:`spawn_programs` run, in a module that needs no torch."""

TARGETS = """
import atexit
import multiprocessing
import os
import random
import signal
import sys
import time

AT_IMPORT = os.environ.get("SET_BY_TEST")


def facts(queue):
    me = multiprocessing.current_process()
    queue.put({
        "environment": dict(os.environ),
        "at import": AT_IMPORT,
        "cwd": os.getcwd(),
        "umask": os.umask(0),
        "path": sys.path,
        "argv": sys.argv,
        "parent": (os.getppid(), multiprocessing.parent_process().pid),
        "group": (os.getpgid(0), os.getsid(0)),
        "me": (me.name, me.daemon, bytes(me.authkey)),
        "method": multiprocessing.get_start_method(),
        "stdin": sys.stdin.read(),
        "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "children": multiprocessing.active_children(),
    })


def is_served(queue):
    queue.put("pytest_ddp.extensions.adopt.ranks.served_process" in sys.modules)


def draw(queue):
    queue.put(random.random())


def talk():
    print("said on stdout")
    print("said on stderr", file=sys.stderr)
    os.write(1, b"written to 1\\n")
    atexit.register(print, "said at exit")


def primitives(event, lock, connection, value, queue):
    event.wait()
    with lock:
        value.value += 1
    connection.send([connection.recv(), len(queue.get())])
    connection.close()


def descriptors(connections):
    for number, connection in enumerate(connections):
        connection.send(number)


def wait(event):
    event.wait()


def say_and_wait(queue, event):
    queue.put("here")
    event.wait()


def ignore_term(event):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    event.set()
    time.sleep(60)


def leave(code):
    sys.exit(code)


def nested(queue):
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=facts, args=(queue,))
    process.start()
    process.join()
    sys.exit(process.exitcode)


def square(number):
    return number * number


def on_rank(rank, what):
    if rank == 1 and what == "raise":
        raise ValueError("raised on rank 1")
    if rank == 1 and what == "exit":
        sys.exit(3)
    if rank == 1 and what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0 and what != "end":
        time.sleep(60)


def on_rank_until(rank, event):
    event.wait()
"""
