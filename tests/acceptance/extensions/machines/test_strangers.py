"""Who else is on the network: what it can reach, and that it changes nothing."""

from __future__ import annotations

import pytest

from tests.acceptance.extensions.machines.cluster import ADDRESSES, PORT, Cluster, problem, wait_for
from tests.acceptance.extensions.machines.switch import Switch
from tests.acceptance.suite import Suite, flat

LISTENING = """
    import os
    import pathlib
    import socket
    import struct

    import pytest
    import torch
    import torch.distributed as dist


    def listening():
        # Of all processes of the machine, which has a network of its own.
        found = set()
        for line in pathlib.Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
            local, _, state = line.split()[1:4]
            if state == "0A":
                address = socket.inet_ntoa(struct.pack("<I", int(local.split(":")[0], 16)))
                found.add(address)
        for line in pathlib.Path("/proc/self/net/tcp6").read_text().splitlines()[1:]:
            local, _, state = line.split()[1:4]
            if state == "0A":
                found.add(local)
        return found


    @pytest.mark.ddp(world_size=4)
    def test_given_group(ddp):
        dist.barrier()
        alpha, _, beta, _ = ddp.gather(listening())
        # The coordinator, gloo's ranks and their store on the one, gloo's ranks alone on the other.
        assert alpha == {"10.77.0.1"}
        assert beta == {"10.77.0.2"}


    @pytest.mark.ddp(world_size=4, init=False)
    def test_own_group(ddp):
        dist.init_process_group("gloo")
        dist.barrier()
        alpha, _, beta, _ = ddp.gather(listening())
        assert alpha == {"10.77.0.1"}
        assert beta == {"10.77.0.2"}
        dist.destroy_process_group()
"""


def test_nothing_listens_on_other_addresses_than_that_of_the_machines_network(
    cluster: Cluster, suite: Suite
) -> None:
    suite.write("test_a.py", LISTENING)
    session = cluster.run(suite)
    session.alpha.assert_outcomes(passed=2)


LONG = """
    import os
    import time

    import pytest
    import torch.distributed as dist


    @pytest.mark.ddp(world_size=4, timeout=120)
    def test_long(ddp):
        if ddp.rank == 0:
            os.rename("waits", "begun")
        while not os.path.exists("go on"):
            time.sleep(0.05)
        dist.barrier()
"""
STRANGER = """
    import contextlib
    import pathlib
    import socket
    import sys

    COORDINATOR = sys.argv[1], int(sys.argv[2])


    def coordinator():
        return socket.create_connection(COORDINATOR, timeout=20)


    def memory():
        # Of the coordinator: who is on the machine can see it.
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and b"machines.main" in (entry / "cmdline").read_bytes():
                    return int((entry / "statm").read_text().split()[1]) * 4096


    def send(data, times=1):
        # All of it, or as much as is taken before the door is shut.
        sent = 0
        with coordinator() as peer, contextlib.suppress(OSError):
            for _ in range(times):
                sent += peer.send(data)
        return sent


    before = memory()
    assert before, "no coordinator is there"
    for _ in range(200):
        coordinator().close()
    send(b"GET / HTTP/1.1\\r\\nHost: here\\r\\n\\r\\n")
    send(b"\\x16\\x03\\x01" + bytes(500))
    send(bytes(48))
    sent = send(bytes(1 << 20), times=1 << 10)
    assert sent < 1 << 30, "the coordinator has read a gigabyte of a stranger's"
    silent = [coordinator() for _ in range(40)]
    # A small part of what it was offered, and much more than what it imports meanwhile.
    assert memory() - before < 64 << 20
    print("done")
"""


def test_strangers_at_the_door_change_nothing(cluster: Cluster, suite: Suite) -> None:
    """A scan, other protocols, a gigabyte, and peers that send nothing and stay."""
    suite.write("test_a.py", LONG)
    suite.write("waits", "")
    alpha, beta = cluster.start(suite)
    wait_for(suite.directory / "begun")
    ran = cluster.execute(1, STRANGER, ADDRESSES[0], PORT, timeout=90)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
    suite.write("go on", "")
    finished = alpha.finish(180)
    finished.assert_outcomes(passed=1)
    assert (finished.returncode, beta.finish(30).returncode) == (0, 0)
    assert cluster.survivors_after(3) == []


PASSING = """
    import pytest


    @pytest.mark.ddp(world_size=2)
    def test_passes(ddp):
        ddp.barrier()
"""


def test_a_second_session_at_the_same_port_fails_with_the_reason(
    cluster: Cluster, suite: Suite
) -> None:
    """The second session has the same secret, as a job that was started twice; the first goes
    on."""
    suite.write("test_a.py", LONG)
    suite.write("waits", "")
    alpha, beta = cluster.start(suite)
    wait_for(suite.directory / "begun")
    suite.write("test_b.py", PASSING)
    second = cluster.start_node(suite, 0, "test_b.py")
    finished = second.finish(90)
    text = flat(finished["test_passes"].text)
    assert "node 0 cannot listen for the others at 10.77.0.1: " in text
    assert "Address already in use" in text
    suite.write("go on", "")
    first = alpha.finish(180)
    first.assert_outcomes(passed=1)
    assert (first.returncode, beta.finish(30).returncode) == (0, 0)
    assert cluster.survivors_after(3) == []


def test_nodes_with_other_settings_are_named(cluster: Cluster, suite: Suite) -> None:
    suite.write("test_a.py", PASSING)
    session = cluster.run(suite, of={1: {"WORLD_SIZE": "3"}})
    words = "node 1 (beta) has WORLD_SIZE=3, and node 0 has 2"
    assert words in flat(session.alpha["test_passes"].text), session.text
    assert f"pytest on node 0 refuses this machine: {words}" in flat(session.beta.output)
    assert (session.alpha.returncode, session.beta.returncode) == (1, 1), session.text
    assert cluster.survivors_after(3) == []


def test_a_second_node_1_is_sent_away_from_a_session_that_runs(
    cluster: Cluster, suite: Suite
) -> None:
    suite.write("test_a.py", LONG)
    suite.write("waits", "")
    alpha, beta = cluster.start(suite)
    wait_for(suite.directory / "begun")
    second = cluster.start_node(suite, 1).finish(90)
    assert second.returncode == 1
    said = "two machines joined as node 1 (beta): each needs its own RANK"
    assert f"pytest on node 0 refuses this machine: {said}" in flat(second.output)
    suite.write("go on", "")
    finished = alpha.finish(180)
    finished.assert_outcomes(passed=1)
    assert (finished.returncode, beta.finish(30).returncode) == (0, 0)
    assert cluster.survivors_after(3) == []


def test_two_of_one_rank_before_the_session_is_complete_are_an_error(suite: Suite) -> None:
    """Nobody knows which of them is the right one."""
    if why := problem():
        pytest.skip(why)
    suite.write("test_a.py", PASSING)
    with Cluster.up(3, Switch()) as cluster:
        alpha, beta, gamma = cluster.start(suite, of={2: {"RANK": "1"}})
        finished = alpha.finish(180)
        ends = sorted(agent.finish(30).returncode for agent in (beta, gamma))
        assert cluster.survivors_after(3) == []
    text = flat(finished["test_passes"].text)
    assert "two machines joined as node 1 (" in text
    assert (finished.returncode, ends) == (1, [1, 1])
