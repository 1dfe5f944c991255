"""Inner tests whose ranks are busy, blocked or stuck when they end, or leave something behind.

Data for ``test_hygiene.py``.
"""

from __future__ import annotations

STATES = """
    import os
    import signal

    import pytest
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, Dataset

    torch.multiprocessing.set_sharing_strategy("file_system")

    def note(file):
        # Short enough to be written whole, whoever else writes.
        descriptor = os.open(os.environ[file], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, b"%d\\n" % os.getpid())
        os.close(descriptor)

    def here():
        \"\"\"Tell the outer test that this process is in its state.\"\"\"
        note("HERE")

    @pytest.fixture(autouse=True)
    def seen():
        note("SEEN")

    class Stuck(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if index == 0:
                note("SEEN")
            if index == 1:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                here()
                while True:
                    signal.pause()
            return torch.ones(1000)

    def be_busy(ddp):
        here()
        while True:
            pass

    def be_blocked(ddp):
        # The operation is on its way when the outer test hears of it.
        work = dist.all_reduce(torch.ones(1), async_op=True) if ddp.rank == 0 else None
        here()
        work.wait() if work is not None else signal.pause()

    def be_stuck(ddp):
        batches = iter(DataLoader(Stuck(), num_workers=1))
        kept = next(batches)
        here()
        return kept, next(batches)

    STATES = {"busy": be_busy, "blocked": be_blocked, "stuck": be_stuck}
    every_state = pytest.mark.parametrize("state", STATES)
"""

ONE_STATE = """
    from states import *

    @pytest.mark.ddp(world_size=2)
    def test_state(ddp, tmp_path):
        STATES[os.environ["STATE"]](ddp)
"""

EVERY_STATE = """
    from states import *

    @every_state
    @pytest.mark.ddp(world_size=2)
    def test_state(ddp, state):
        STATES[state](ddp)
"""

WORKER_DIES = """
    from states import *

    @pytest.mark.ddp(world_size=2)
    def test_before(ddp):
        pass

    def test_kills_its_worker():
        os.kill(os.getpid(), signal.SIGKILL)

    @pytest.mark.ddp(world_size=2)
    def test_after(ddp):
        pass
"""

FAILURES = """
    from states import *

    @every_state
    @pytest.mark.ddp(world_size=3)
    def test_failure(ddp, state, tmp_path):
        assert ddp.rank != 1, "rank 1 fails"
        STATES[state](ddp)

    @every_state
    @pytest.mark.ddp(world_size=3)
    def test_death(ddp, state):
        if ddp.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        STATES[state](ddp)
"""

TIMEOUTS = """
    from states import *

    @every_state
    @pytest.mark.ddp(world_size=2, timeout=2)
    def test_timeout(ddp, state, tmp_path):
        STATES[state](ddp)
"""

LEAVES = """
    import subprocess
    import sys
    import threading
    from multiprocessing import shared_memory

    from states import *

    KEEP = []

    @pytest.mark.ddp(world_size=2)
    def test_passes(ddp, tmp_path):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2.0

    @pytest.mark.ddp(world_size=2)
    def test_leaves_a_busy_thread(ddp):
        def spin():
            while True:
                pass
        threading.Thread(target=spin).start()

    @pytest.mark.ddp(world_size=2)
    def test_leaves_a_stuck_worker(ddp):
        batches = iter(DataLoader(Stuck(), num_workers=1, prefetch_factor=2))
        KEEP.extend([batches, next(batches)])

    @pytest.mark.ddp(world_size=2)
    def test_leaves_a_pending_collective(ddp):
        if ddp.rank == 0:
            KEEP.append(dist.all_reduce(torch.ones(1), async_op=True))

    @pytest.mark.ddp(world_size=2)
    def test_leaves_children(ddp):
        ignore = "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"
        for own_session in (False, True):
            subprocess.Popen([sys.executable, "-c", ignore], start_new_session=own_session)

    @pytest.mark.ddp(world_size=2)
    def test_leaves_shared_memory(ddp):
        KEEP.append(torch.ones(100).share_memory_())
        ddp.barrier()

    class Seen(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            note("SEEN")
            return torch.ones(1000)

    @pytest.mark.ddp(world_size=2)
    def test_leaves_batches_of_ended_workers(ddp):
        KEEP.extend(DataLoader(Seen(), num_workers=1))
        some = iter(DataLoader(Seen(), num_workers=1))
        KEEP.append(next(some))
"""
