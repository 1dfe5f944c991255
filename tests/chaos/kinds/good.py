"""Legal cases, also slow and odd ones: each must be green, whatever ran before it."""

from __future__ import annotations

from tests.chaos.case import PASSED, Case, Draw

SMALL = {
    "asserts": "assert ddp.world_size >= 1",
    "sums": "assert total() == ddp.world_size",
    "gathers objects": "assert len(set(pids())) == ddp.world_size",
    "barriers": "for _ in range(20):\n    dist.barrier()",
    "ring": """
        peer = (ddp.rank + 1) % ddp.world_size
        got = torch.zeros(1)
        if ddp.world_size > 1:
            sent = dist.isend(torch.ones(1) * ddp.rank, peer)
            dist.recv(got, (ddp.rank - 1) % ddp.world_size)
            sent.wait()
            assert got.item() == (ddp.rank - 1) % ddp.world_size
    """,
    "subgroup of rank 0": """
        alone = dist.new_group([0])
        if ddp.rank == 0:
            dist.all_reduce(torch.ones(1), group=alone)
        dist.barrier()
        if ddp.rank == 0:
            dist.destroy_process_group(alone)
    """,
    "unlike lines": """
        if ddp.rank == 0:
            dist.broadcast(torch.ones(2), 0)
        else:
            got = torch.zeros(2)
            dist.broadcast(got, 0)
            assert got.sum() == 2
    """,
    "exchanges": "assert ddp.broadcast(ddp.rank) == 0\nddp.barrier()",
    "trains": """
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
        model(torch.ones(2, 3)).sum().backward()
        assert model.module.weight.grad is not None
    """,
    "communicates in a thread": """
        thread = threading.Thread(target=dist.barrier)
        thread.start()
        thread.join()
    """,
    "waits for its children": """
        assert subprocess.run([sys.executable, "-c", "pass"]).returncode == 0
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """,
    "catches everything": """
        for kind in (KeyboardInterrupt, SystemExit, GeneratorExit, Odd, ValueError):
            with pytest.raises(kind):
                raise kind
    """,
    "alarm": """
        rung = []
        before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        time.sleep(0.3)
        signal.signal(signal.SIGALRM, before)
        assert rung
    """,
    "new default group": """
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        assert total() == ddp.world_size
    """,
}
SLOW = {
    "slow rank": "if ddp.rank == 0:\n    time.sleep({seconds})\ndist.barrier()",
    "all slow": "time.sleep({seconds})\ndist.barrier()",
    "busy rank": """
        ends = monotonic() + {seconds}
        while ddp.rank == 0 and monotonic() < ends:
            pass
        dist.barrier()
    """,
    "holds the GIL": """
        if ddp.rank == ddp.world_size - 1:
            holding_the_gil.usleep(int({seconds} * 1e6))
        dist.barrier()
    """,
    "slow sender": """
        if ddp.rank == 0:
            time.sleep({seconds})
        for peer in range(1, ddp.world_size):
            if ddp.rank == 0:
                dist.send(torch.ones(1), peer)
            elif ddp.rank == peer:
                dist.recv(torch.zeros(1), 0)
    """,
    "slow exchange": "if ddp.rank == 0:\n    time.sleep({seconds})\nddp.barrier()",
}
FEATURES = {
    "capsys": "print('here')\nassert capsys.readouterr().out == 'here\\n'",
    "capfd": "write(1, b'here')\nassert capfd.readouterr().out == 'here'",
    "caplog": "logging.getLogger().warning('here')\nassert 'here' in caplog.text",
    "recwarn": "warnings.warn('here')\nassert len(recwarn) == 1",
    "tmp_path": "assert len(set(ddp.gather(str(tmp_path)))) == 1",
    "monkeypatch": "monkeypatch.setenv('CHAOS_LEFT', '1')\nmonkeypatch.chdir('/')\ndist.barrier()",
    "subtests": "for n in range(3):\n    with subtests.test(n=n):\n        assert n >= 0",
    "request": "assert request.getfixturevalue('ddp') is ddp",
}


def sound(draw: Draw, world_size: int) -> Case:
    """The test that looks for what others have left."""
    return Case("good: sound", PASSED, world_size, body="sound(ddp)")


def small(draw: Draw, world_size: int) -> Case:
    kind = draw.one(SMALL)
    return Case(f"good: {kind}", PASSED, world_size, body=SMALL[kind])


def slow(draw: Draw, world_size: int) -> Case:
    kind, seconds = draw.one(SLOW), draw.between(0.5, 3)
    body = SLOW[kind].format(seconds=seconds)
    return Case(f"good: {kind} for {seconds} s", PASSED, world_size, body=body)


def feature(draw: Draw, world_size: int) -> Case:
    name = draw.one(FEATURES)
    return Case(f"good: {name}", PASSED, world_size, body=FEATURES[name], wants=(name,))


def fixture(draw: Draw, world_size: int) -> Case:
    """A fixture that communicates in setup and teardown."""
    sums = "assert total() == ddp.world_size"
    return Case("good: fixture", PASSED, world_size, setup=sums, body=sums, teardown=sums)


def isolated(draw: Draw, world_size: int) -> Case:
    return Case("good: isolated", PASSED, world_size, "sound(ddp)", mark={"isolate": True})


def with_variables(draw: Draw, world_size: int) -> Case:
    body = "assert os.environ['CHAOS_ENV'] == 'here'\nsound(ddp)"
    return Case("good: env", PASSED, world_size, body, mark={"env": {"CHAOS_ENV": "here"}})


def own_group(draw: Draw, world_size: int) -> Case:
    """A test that initialises the default group by itself."""
    body = "dist.init_process_group('gloo')\nassert total() == ddp.world_size"
    body += "\ndist.destroy_process_group()" if draw.chance(0.7) else ""
    return Case("good: init=False", PASSED, world_size, body, mark={"init": False})


GOOD = (sound, small, small, slow, feature, fixture, isolated, with_variables, own_group)
