"""Questions to hand-made records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddp.extensions.comms.records import Communication, Entry, Moment, Record, size_text

GATHER = Record(
    operation="all_gather",
    form="all_gather_into_tensor",
    group="dp",
    members=(0, 1),
    tensors=1,
    elements=4,
    dtype="float32",
    bytes=16,
    reduce_op=None,
    root=None,
    peer=None,
    is_async=True,
    cpu_form=False,
    step=1,
    phase="forward",
    issued_in="layers.0",
    belongs_to="layers.1",
    site="/home/me/train.py:7",
    group_name="3",
    function="on_step_end",
)
REDUCE = replace(GATHER, operation="all_reduce", form="c++.all_reduce", reduce_op="SUM", group="tp")
OBJECT = replace(
    GATHER, operation="all_gather_object", form="all_gather_object", bytes=None, belongs_to=None
)


def communication(*entries: Entry) -> Communication:
    def name_of(group: object) -> str | None:
        if group not in ("dp", "tp"):
            raise ValueError(group)
        return None

    return Communication(lambda: entries, name_of)


def test_counts_by_operation_and_by_form() -> None:
    comms = communication(GATHER, Moment("forward", ""), replace(GATHER, form="all_gather"), REDUCE)
    assert comms.counts() == {"all_gather": 2, "all_reduce": 1}
    assert comms.counts(forms=True) == {
        "all_gather_into_tensor": 1,
        "all_gather": 1,
        "c++.all_reduce": 1,
    }
    assert comms.of("all_gather").counts() == {"all_gather": 2}
    assert comms.of("c++.all_reduce").counts() == {"all_reduce": 1}
    assert len(comms) == 3


def test_bytes_are_without_those_of_objects() -> None:
    assert communication(GATHER, OBJECT).bytes == 16


def test_by_group() -> None:
    comms = communication(GATHER, REDUCE)
    assert list(comms.on("dp")) == [GATHER]
    with pytest.raises(ValueError, match="pp"):
        comms.on("pp")


def test_by_module() -> None:
    bucket = replace(REDUCE, belongs_to=("a.weight", "a.bias"))
    outside = replace(REDUCE, belongs_to=None, issued_in=None)
    assert communication(GATHER, OBJECT, bucket, outside).by_module() == {
        "layers.1": {"all_gather": 1},
        "layers.0": {"all_gather_object": 1},
        "a.weight, a.bias": {"all_reduce": 1},
        "": {"all_reduce": 1},
    }


@pytest.mark.parametrize(
    "change", [{"step": 2}, {"site": "b.py:1"}, {"issued_in": None}, {"group_name": "4"}]
)
def test_equal_whatever_is_not_communicated(change: dict[str, object]) -> None:
    assert communication(GATHER) == communication(replace(GATHER, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"bytes": 8}, {"group": "tp"}, {"form": "all_gather"}, {"is_async": False}]
)
def test_unequal_in_what_is_communicated(change: dict[str, object]) -> None:
    assert communication(GATHER) != communication(replace(GATHER, **change))  # type: ignore[arg-type]
    assert communication(GATHER) != communication()


def test_before() -> None:
    comms = communication(
        Moment("forward", "layers.0"), GATHER, Moment("forward", "layers.1"), REDUCE
    )
    comms.assert_before("all_gather", "forward", belongs_to="layers.1")
    comms.assert_before("all_gather", "all_reduce", belongs_to="layers.1")
    comms.assert_before("all_gather", "all_reduce")
    with pytest.raises(AssertionError, match=r"all_reduce of layers.1 comes after forward of"):
        comms.assert_before("all_reduce", "forward", belongs_to="layers.1")
    with pytest.raises(AssertionError, match=r"comes after forward of layers.0"):
        comms.assert_before("all_gather", "forward", belongs_to="layers.1", module="layers.0")


def test_before_what_is_not_there() -> None:
    comms = communication(GATHER)
    with pytest.raises(AssertionError, match="no forward of the model in the block"):
        comms.assert_before("all_gather", "forward")
    with pytest.raises(AssertionError, match="no barrier in the block"):
        comms.assert_before("barrier", "all_gather")
    with pytest.raises(ValueError, match="no operation 'allgather'"):
        comms.assert_before("allgather", "forward")


def test_table() -> None:
    table = communication(GATHER, GATHER, replace(REDUCE, cpu_form=True, reduce_op="MAX")).table()
    title, gathers, reduce, star, summary = table.splitlines()
    assert title.split("  ")[0] == "operation"
    assert gathers.split() == [
        *("all_gather_into_tensor", "dp", "float32", "layers.1", "layers.0"),
        *("train.py:7", "2", "32", "B"),
    ]
    assert reduce.startswith("c++.all_reduce* MAX  ")
    assert star.startswith("* torch asks for something else")
    assert summary == "<communication: all_gather 2, all_reduce 1; 48 B>"


def test_table_of_objects_has_no_size() -> None:
    """A pickle's size is unknown; a barrier's is known, and nothing."""
    objects = replace(GATHER, operation="all_gather_object", form="all_gather_object", bytes=None)
    barrier = replace(REDUCE, operation="barrier", form="barrier", bytes=0)
    _, first, second, *_, summary = communication(objects, barrier, objects).table().splitlines()
    assert first.split()[-2:] == ["2", "unknown"]
    assert second.split()[-3:] == ["1", "0", "B"]
    assert summary == "<communication: all_gather_object 2, barrier 1; 0 B and 2 of unknown size>"
    assert repr(communication(objects)) == (
        "<communication: all_gather_object 1; 1 of unknown size>"
    )


def test_table_of_nothing() -> None:
    assert communication().table() == "<communication: none; 0 B>"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 20, "3 MiB")]
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text
