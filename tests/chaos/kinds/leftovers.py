"""Cases that pass and leave something behind; the next test must not notice."""

from __future__ import annotations

from tests.chaos.case import ANYTHING, FAILED, PASSED, TEARDOWN_ERROR, Case, Draw, on

LEFT = {
    "thread": "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    "busy thread": """
        def spin():
            while True:
                pass
        threading.Thread(target=spin, daemon=True).start()
    """,
    "child": "subprocess.Popen(['sleep', '600'])",
    "child in a session of its own": "subprocess.Popen(['sleep', '600'], start_new_session=True)",
    "forked child": "if os.fork() == 0:\n    time.sleep(600)\n    os._exit(0)",
    "zombie": "subprocess.Popen(['true'])",
    "environment": "os.environ['CHAOS_LEFT'] = '1'",
    "lost environment": "os.environ.pop('HOME', None)\nos.environ.pop('PATH')",
    "place": "os.environ['RANK'] = '7'\nos.environ['WORLD_SIZE'] = '9'",
    "working directory": "os.chdir('/')",
    "lost working directory": "os.chdir(tempfile.mkdtemp())\nos.rmdir(os.getcwd())",
    "default dtype": "torch.set_default_dtype(torch.float64)",
    "grad mode": "torch.set_grad_enabled(False)",
    "threads of torch": "torch.set_num_threads(3)",
    "alarm": "signal.signal(signal.SIGALRM, signal.SIG_DFL)\nsignal.alarm(1)",
    "quick alarm": "signal.setitimer(signal.ITIMER_REAL, 0.4)",
    "SIGTERM ignored": "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "SIGINT ignored": "signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "SIGCHLD ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "SIGTERM handled": "signal.signal(signal.SIGTERM, lambda *_: print('no'))",
    "signals blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})",
    "flood": "for _ in range(30000):\n    print('flood ' * 20)",
    "flood of bytes": "for _ in range(100):\n    write(1, b'\\xff\\x00' * 30000)",
    "flood of errors": "for _ in range(20000):\n    print('flood ' * 20, file=sys.stderr)",
    "half a line": "write(2, b'half a line')",
    "handlers of logging": "logging.getLogger().addHandler(logging.StreamHandler(sys.stdout))",
    "stdout": "sys.stdout = open(os.devnull, 'w')",
    "descriptors": "KEPT.extend(open(os.devnull) for _ in range(200))",
    "collector off": "gc.disable()",
    "trace": "sys.settrace(lambda *_: None)",
    "profile of threads": "threading.setprofile(lambda *_: None)",
    "excepthook": "sys.excepthook = lambda *_: None",
    "faulthandler off": "faulthandler.disable()",
    "seeds": "random.seed(1)\ntorch.manual_seed(1)",
    "exit handler": "atexit.register(print, 'bye')",
    "failing exit handler": "atexit.register(lambda: 1 / 0)",
    "finalizer": "KEPT.append(type('Odd', (), {'__del__': lambda self: 1 / 0})())",
    "event loop": "asyncio.set_event_loop(asyncio.new_event_loop())",
    "umask": "os.umask(0o777)",
    "nice": "os.nice(5)",
    "shared memory of torch": "KEPT.append(torch.ones(1000).share_memory_())",
    "shared memory": "KEPT.append(shared_memory.SharedMemory(create=True, size=1000))",
    "process pool": "KEPT.append(get_context('fork').Pool(1))",
    "loader": """
        KEPT.append(iter(torch.utils.data.DataLoader(range(20), num_workers=1)))
        next(KEPT[-1])
    """,
    "modules": "sys.modules.pop('json', None)\nsys.path.clear()",
    "warnings filter": "warnings.simplefilter('error')",
    "locale": "os.environ['LC_ALL'] = 'C'\nos.environ['PYTHONUTF8'] = '0'",
    "cycle": "cycle = [KEPT]\ncycle.append(cycle)",
    "memory": "KEPT.append(bytearray(50_000_000))",
    "SIGUSR1 ignored": "signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
    "time": "time.time = time.monotonic = lambda: 0.0",
    "os": "os.getpid = lambda: 1\nos.write = lambda to, data: 0 if to < 3 else write(to, data)",
    "json": "json.dumps = json.loads = None",
    "wiped TMPDIR": """
        for path in Path(tempfile.gettempdir()).iterdir():
            subprocess.run(["rm", "-rf", str(path)])
    """,
}
GROUPS = {
    "destroyed": "dist.destroy_process_group()",
    "destroyed on one rank": "if ddp.rank == 0:\n    dist.destroy_process_group()",
    "replaced": "dist.destroy_process_group()\ndist.init_process_group('gloo')",
    "replaced and used": """
        dist.destroy_process_group()
        dist.init_process_group('gloo')
        total()
    """,
    "replaced by one with a short timeout": """
        from datetime import timedelta
        dist.destroy_process_group()
        dist.init_process_group('gloo', timeout=timedelta(seconds=1))
    """,
    "subgroups": "KEPT.extend(dist.new_group() for _ in range(3))",
    "used subgroup": "KEPT.append(dist.new_group())\ndist.barrier(group=KEPT[-1])",
    "async work": "KEPT.append(dist.all_reduce(torch.ones(10), async_op=True))",
    "much async work": """
        for _ in range(50):
            KEPT.append(dist.all_reduce(torch.ones(1000), async_op=True))
    """,
    "send": "if ddp.rank == 0:\n    KEPT.append(dist.isend(torch.ones(1), ddp.world_size - 1))",
    "receive": """
        if ddp.rank == 1:
            KEPT.append(torch.ones(1))
            KEPT.append(dist.irecv(KEPT[-1], 0))
    """,
    "model": "KEPT.append(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2)))",
    "keys in the store": "dist.distributed_c10d._get_default_store().set('key', b'x')",
}


def state(draw: Draw) -> Case:
    size = draw.size()
    kind = draw.one(LEFT)
    ranks = draw.ranks(size)
    return Case(f"leaves {kind} on {ranks}", PASSED, size, on(ranks, LEFT[kind]))


def group(draw: Draw) -> Case:
    kind = draw.one(GROUPS)
    return Case(f"leaves group: {kind}", PASSED, draw.size(2), GROUPS[kind])


def closed_descriptors(draw: Draw) -> Case:
    """A rank that closes all descriptors ends, and fails; closed standard streams alone are no
    trouble."""
    size = draw.size()
    if draw.chance(0.5):
        closes = f"os.close({draw.one([0, 1, 2])})"
        return Case(f"closes: {closes}", ANYTHING, size, closes, spares_ranks=False)
    body = f"if ddp.rank == {draw.one(range(size))}:\n    os.closerange(3, 10000)"
    truth = FAILED | TEARDOWN_ERROR | {"failed+error"}
    return Case("closes all descriptors", truth, size, body, spares_ranks=False)


LEFTOVERS = (state, state, state, state, state, group, group, closed_descriptors)
