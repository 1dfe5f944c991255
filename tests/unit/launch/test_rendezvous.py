"""What ranks find each other by: a loopback socket, torchrun's variables."""

from __future__ import annotations

import socket

from pytest_ddp.launch.rendezvous import (
    Port,
    Rendezvous,
    listen,
    node_environments,
    open_port,
    rank_environment,
)
from pytest_ddp.protocol.host_messages import PLACE_VARIABLES, World


def test_the_socket_listens_on_loopback_alone() -> None:
    with listen(backlog=2) as server:
        address, port = server.getsockname()
        assert address == "127.0.0.1"
        assert port > 0
        with socket.create_connection((address, port), timeout=10), server.accept()[0]:
            pass


def test_sockets_that_are_open_together_have_ports_of_their_own() -> None:
    with listen(1) as first, listen(1) as second:
        assert first.getsockname() != second.getsockname()


def test_ranks_get_their_place_as_from_torchrun() -> None:
    environments = [rank_environment(rank, 3, 4711, "abc") for rank in range(3)]
    for name in ("RANK", "LOCAL_RANK", "ROLE_RANK"):
        assert [environment[name] for environment in environments] == ["0", "1", "2"]
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"):
        assert {environment[name] for environment in environments} == {"3"}
    for environment in environments:
        assert (environment["GROUP_RANK"], environment["GROUP_WORLD_SIZE"]) == ("0", "1")
        assert environment["MASTER_ADDR"] == "127.0.0.1"
        assert environment["MASTER_PORT"] == "4711"
        assert environment["TORCHELASTIC_RUN_ID"] == "abc"


def test_no_rank_is_to_listen_by_itself() -> None:
    assert rank_environment(0, 2, 1, "x")["TORCHELASTIC_USE_AGENT_STORE"] == "True"


def test_a_pool_keeps_its_run_and_has_a_new_port_after_each_use() -> None:
    """A rank that starts between two tests gets the port of the next."""
    pool = Rendezvous(World("gloo", 2, None, init=True), "abc", open_port)
    first = [pool.environment(rank)["MASTER_PORT"] for rank in (0, 1, 1)]
    pool.renew()  # nobody has been there
    taken = pool.take()
    assert taken is not None
    with taken:
        assert taken.listening is not None
        assert {str(taken.listening.getsockname()[1])} == set(first)
        assert taken.descriptors == (taken.listening.fileno(),)
        assert pool.take() is None
        assert pool.environment(0)["MASTER_PORT"] in first
        pool.renew()
        following = pool.environment(0)
        assert following["MASTER_PORT"] not in first
        assert following["TORCHELASTIC_RUN_ID"] == "abc"
    pool.close()
    pool.close()


def test_the_place_s_variables_are_those_that_a_rank_has() -> None:
    assert set(PLACE_VARIABLES) == set(rank_environment(0, 1, 1, ""))


def test_ranks_of_two_machines_know_their_own() -> None:
    places = node_environments((0, 0, 1))
    assert [place["LOCAL_RANK"] for place in places] == ["0", "1", "0"]
    assert [place["LOCAL_WORLD_SIZE"] for place in places] == ["2", "2", "1"]
    assert [place["GROUP_RANK"] for place in places] == ["0", "0", "1"]
    assert [place["NODE_RANK"] for place in places] == ["0", "0", "1"]
    assert {place["GROUP_WORLD_SIZE"] for place in places} == {"2"}


def test_a_world_on_one_machine_of_several_is_its_first() -> None:
    """Whatever the machine's own number: the world has no other."""
    assert node_environments((3, 3))[1]["GROUP_RANK"] == "0"


def test_ranks_of_two_machines_meet_where_the_first_is() -> None:
    world = World("gloo", 2, None, init=True, nodes=(0, 1))
    pool = Rendezvous(world, "abc", lambda _: Port("10.0.0.1", 4711))
    shown = [pool.environment(rank) for rank in range(2)]
    assert {(place["MASTER_ADDR"], place["MASTER_PORT"]) for place in shown} == {
        ("10.0.0.1", "4711")
    }
    port = pool.take()
    assert port is not None
    assert port.descriptors == ()
