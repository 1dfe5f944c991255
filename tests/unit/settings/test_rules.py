"""The rules for single values, and the texts that have what they allow."""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.settings.rules import (
    HIDING_VARIABLES,
    MAX_WORLD_SIZE,
    OWNED_VARIABLES,
    check_backend,
    check_bool,
    check_device,
    check_env,
    check_local_size_or_none,
    check_member,
    check_seconds,
    check_seed,
    check_seed_or_same,
    check_sharing,
    check_size,
    check_sizes,
    enumerated,
    mark_error,
    option_error,
    shown,
)


class Fruit(enum.StrEnum):
    APPLE = "apple"
    PLUM = "plum"


check_fruit = check_member(Fruit)


@pytest.mark.parametrize(
    ("check", "value", "result"),
    [
        (check_size, 1, 1),
        (check_size, 64, 64),
        (check_size, 4096, 4096),
        (check_local_size_or_none, "64", 64),
        (check_local_size_or_none, "", None),
        (check_sizes, 4, ((4,), False)),
        (check_sizes, "gpus", (("gpus",), False)),
        (check_sizes, [4], ((4,), True)),
        (check_sizes, (1, "gpus"), ((1, "gpus"), True)),
        (check_sizes, range(2, 5), ((2, 3, 4), True)),
        (check_backend, "auto", "auto"),
        (check_backend, "gloo", "gloo"),
        (check_backend, "NCCL", "nccl"),
        (check_backend, "cpu:gloo,CUDA:nccl", "cpu:gloo,cuda:nccl"),
        (check_backend, "own_one", "own_one"),
        (check_device, "meta", "meta"),
        (check_sharing, 64, 64),
        (check_seconds, 5, 5.0),
        (check_seconds, 1e-3, 1e-3),
        (check_seconds, 604800, 604800.0),
        (check_seed, 0, 0),
        (check_seed, 2**32 - 1, 2**32 - 1),
        (check_seed_or_same, 0, 0),
        (check_seed_or_same, "same", "same"),
        (check_bool, True, True),
        (check_bool, False, False),
        (check_env, {}, ()),
        (check_env, {"A": "1", "B": ""}, (("A", "1"), ("B", ""))),
        (check_fruit, "plum", Fruit.PLUM),
    ],
)
def test_allowed(check: Callable[[object], object], value: object, result: object) -> None:
    got = check(value)
    assert got == result
    assert type(got) is type(result)


REFUSED: list[tuple[Callable[[object], object], object, str]] = [
    (check_size, 0, "at least 1 rank"),
    (check_size, -2, "at least 1 rank"),
    (check_size, 4097, "each rank is a process"),
    (check_size, 10**6, "each rank is a process"),
    (check_size, True, "a whole number from 1 to 4096"),
    (check_size, None, "a whole number from 1 to 4096"),
    (check_size, 4.0, "a whole number from 1 to 4096"),
    (check_size, "4", "a whole number from 1 to 4096"),
    (check_size, [4], "a whole number from 1 to 4096"),
    (check_local_size_or_none, "65", "one machine takes a whole number of ranks from 1 to 64"),
    (check_local_size_or_none, "0", "one machine takes"),
    (check_local_size_or_none, "two", "one machine takes"),
    (check_sizes, "four", '"gpus" for one rank on each GPU'),
    (check_sizes, True, "such as [1, 2, 4]"),
    (check_sizes, 0, "at least 1 rank"),
    (check_sizes, [], "Name at least one"),
    (check_sizes, (), "Name at least one"),
    (check_sizes, range(0), "Name at least one"),
    (check_sizes, [2, 2], "2 is in the list more than once"),
    (check_sizes, ["gpus", "gpus"], "gpus is in the list more than once"),
    (check_sizes, [1, True], "a whole number from 1 to 4096"),
    (check_sizes, [1, 0], "at least 1 rank"),
    (check_sizes, [[1]], "a whole number from 1 to 4096"),
    (check_sizes, {1, 2}, "such as [1, 2, 4]"),
    (check_sizes, range(1, 10**12), "each rank is a process"),
    (check_backend, "mpi", "started by mpirun"),
    (check_backend, "cpu:mpi", "started by mpirun"),
    (check_backend, "", "a name such as gloo or nccl"),
    (check_backend, None, "a name such as gloo or nccl"),
    (check_backend, "gloo,nccl", "such as cpu:gloo,cuda:nccl"),
    (check_backend, "cpu:gloo,cpu:own", "cpu has more than one backend"),
    (check_backend, "cpu:auto", "auto cannot be combined with a device type"),
    (check_backend, "cpu: gloo", "such as cpu:gloo,cuda:nccl"),
    (check_device, "gpu", "cpu, cuda, xpu and meta"),
    (check_device, "cuda:0", "the plugin decides which GPU a rank gets"),
    (check_sharing, 0, "a whole number from 1 to 64"),
    (check_sharing, True, "a whole number from 1 to 64"),
    (check_seconds, 0, "seconds above 0"),
    (check_seconds, -1.5, "seconds above 0"),
    (check_seconds, "5", "seconds above 0"),
    (check_seconds, True, "seconds above 0"),
    (check_seconds, None, "seconds above 0"),
    (check_seconds, float("nan"), "seconds above 0"),
    (check_seconds, float("inf"), "at most 604800 (a week)"),
    (check_seconds, 10**400, "at most 604800 (a week)"),
    (check_seed, -1, "a whole number from 0"),
    (check_seed, 1.0, "a whole number from 0"),
    (check_seed, "same", "a whole number from 0"),
    (check_seed, 2**32, "to 4294967295"),
    (check_seed_or_same, True, 'or "same"'),
    (check_seed_or_same, "differ", 'or "same"'),
    (check_bool, 0, "True or False"),
    (check_bool, "false", "True or False"),
    (check_env, ["A"], '{"NCCL_DEBUG": "INFO"}'),
    (check_env, "A=1", '{"NCCL_DEBUG": "INFO"}'),
    (check_env, {"A": 1}, "unlike 'A': 1"),
    (check_env, {1: "A"}, "unlike 1: 'A'"),
    (check_env, {"": "A"}, "cannot be an environment variable"),
    (check_env, {"A=B": "A"}, "cannot be an environment variable"),
    (check_env, {"A": "\0"}, "cannot be an environment variable"),
    (check_env, {"A\0": ""}, "cannot be an environment variable"),
    (check_fruit, "pear", "apple and plum"),
    (check_fruit, None, "apple and plum"),
    *(
        (check_env, {"MINE": "1", name: "0"}, f"{name} is set for each rank by the plugin")
        for name in sorted(OWNED_VARIABLES)
    ),
    *(
        (check_env, {name: ""}, f"{name} is read before a rank gets its GPU")
        for name in sorted(HIDING_VARIABLES)
    ),
]


@pytest.mark.parametrize(("check", "value", "said"), REFUSED)
def test_refused(check: Callable[[object], object], value: object, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        check(value)
    assert said in str(caught.value)
    item = cast(Any, SimpleNamespace(nodeid="test_a.py::test"))
    *_, last = lines = str(mark_error(item, f"{caught.value}.")).splitlines()
    assert lines[0] == "test_a.py::test"
    assert last.endswith(".")
    assert all(line.startswith("  ") and len(line) < 80 for line in lines[1:])


@given(st.integers())
def test_a_world_size_is_allowed_exactly_from_1_to_4096(value: int) -> None:
    try:
        assert check_size(value) == value
    except ValueError:
        assert not 1 <= value <= MAX_WORLD_SIZE
    else:
        assert 1 <= value <= 4096


@given(st.lists(st.integers(1, 64), min_size=1))
def test_a_list_is_allowed_exactly_without_repetition(sizes: list[int]) -> None:
    if len(set(sizes)) == len(sizes):
        assert check_sizes(sizes) == (tuple(sizes), True)
    else:
        with pytest.raises(ValueError, match="more than once"):
            check_sizes(sizes)


@given(st.text(alphabet="ab -", max_size=400))
def test_an_option_error_fits_the_terminal_behind_its_prefix(text: str) -> None:
    lines = ("ERROR: " + str(option_error(text))).splitlines()
    assert " ".join(" ".join(lines).split()) == " ".join(f"ERROR: {text}".split())
    words = text.split()
    if all(len(word) < 70 for word in words):
        assert all(len(line) < 80 for line in lines)


def test_the_owner_of_a_mark_is_named_unless_it_is_the_test() -> None:
    item = cast(Any, SimpleNamespace(nodeid="test_a.py::TestA::test"))
    owner = cast(Any, SimpleNamespace(nodeid="test_a.py::TestA"))
    assert "(The mark is on test_a.py::TestA.)" in str(mark_error(item, "No.", owner))
    assert str(mark_error(item, "No.", item)) == "test_a.py::TestA::test\n  No."


@pytest.mark.parametrize("value", ["x" * 10_000, ["x" * 100] * 1000, 10**3000, {"k" * 999: 1}])
def test_long_values_are_shortened(value: object) -> None:
    assert len(shown(value)) < 400


def test_enumeration() -> None:
    assert enumerated(["a", "b"]) == "a and b"
    assert enumerated(Fruit) == "apple and plum"
    assert enumerated("abc") == "a, b and c"
