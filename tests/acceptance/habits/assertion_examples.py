"""Values of all kinds, and inner tests that compare them between ranks."""

from __future__ import annotations

VALUES = """
    import collections
    import dataclasses
    import datetime
    import enum
    import pathlib

    import numpy as np
    import pytest
    import torch
    from torch import nn

    pytestmark = pytest.mark.ddp(world_size=3)

    class Plain:
        def __init__(self, value):
            self.value, self.me = value, self

    class Slotted:
        __slots__ = ("value",)

        def __init__(self, value):
            self.value = value

    class Near:
        '''Equal, if its number is of the same ten; pickled otherwise.'''

        def __init__(self, value):
            self.value = value

        def __eq__(self, other):
            return self.value // 10 == other.value // 10

        __hash__ = None

    @dataclasses.dataclass
    class Record:
        value: object
        ignored: int = dataclasses.field(default=0, compare=False)

    Pair = collections.namedtuple("Pair", "one other")

    class Color(enum.Enum):
        RED = 0
        BLUE = 1

    def model(x):
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        with torch.no_grad():
            made[0].weight.fill_(0.1)[1, 2] += x
        return made

    def optimizer(x):
        made = torch.optim.Adam((m := model(0)).parameters(), lr=0.1 + x)
        m(torch.ones(4, 3)).sum().backward()
        made.step()
        return made

    def large(x):
        made = torch.zeros(300, 1000)
        made[250, 17] = x
        return made

    # Each makes the same of equal numbers, and something else of 0 and 1.
    VALUES = {
        "tensor": lambda x: torch.tensor([[1.0, 2.0], [3.0, 4.0 + x]]),
        "large": large,
        "scalar": lambda x: torch.tensor(x),
        "strided": lambda x: (torch.zeros(4, 6) + x).t()[::2],
        "bool": lambda x: torch.tensor([True, bool(x)]),
        "half": lambda x: torch.tensor([0.5 + x], dtype=torch.float16),
        "bfloat16": lambda x: torch.tensor([0.5 + x], dtype=torch.bfloat16),
        "float8": lambda x: torch.tensor([0.5 + x]).to(torch.float8_e4m3fn),
        "complex": lambda x: torch.tensor([1j * x]).conj(),
        "int64": lambda x: torch.tensor([2**62 + x]),
        "dtype": lambda x: torch.zeros(2, dtype=[torch.float32, torch.float64][x]),
        "shape": lambda x: torch.zeros(2 + x, 2),
        "nan": lambda x: torch.tensor([float("nan"), float(x)]),
        "quantized": lambda x: torch.quantize_per_tensor(
            torch.tensor([1.0, 0.5 * x]), 0.5, 1, torch.qint8
        ),
        "sparse": lambda x: torch.tensor([[0.0, x + 1.0], [0.0, 0.0]]).to_sparse(),
        "csr": lambda x: torch.tensor([[0.0, x + 1.0], [0.0, 0.0]]).to_sparse_csr(),
        "meta": lambda x: torch.empty(2 + x, device="meta"),
        "module": model,
        "optimizer": optimizer,
        "state dict": lambda x: model(x).state_dict(),
        "scheduler": lambda x: torch.optim.lr_scheduler.StepLR(optimizer(0), 1 + x),
        "generator": lambda x: torch.Generator().manual_seed(x),
        "numpy": lambda x: np.array([1, 2 + x]),
        "numpy strings": lambda x: np.array(["a", "b" * (x + 1)]),
        "numpy number": lambda x: np.float32(x),
        "none": lambda x: [None, None][x] if not x else 0,
        "int": lambda x: x,
        "float": lambda x: 1.0 + x,
        "text": lambda x: "a" * 500 + str(x) + "b" * 500,
        "bytes": lambda x: b"a%d" % x,
        "enum": lambda x: Color(x),
        "path": lambda x: pathlib.Path("a") / str(x),
        "date": lambda x: datetime.date(2026, 1, 1 + x),
        "list": lambda x: [1, [2, {"three": x}]],
        "lengths": lambda x: [1] * (2 + x),
        "dict": lambda x: {"a": 1, "b": x},
        "keys": lambda x: {"a": 1, "bc"[x]: 2},
        "set": lambda x: {"a", "b", f"c{x}"},
        "named tuple": lambda x: Pair(1, x),
        "dataclass": lambda x: Record(torch.tensor([x])),
        "object": lambda x: Plain(x),
        "slots": lambda x: Slotted(x),
        "own equality": lambda x: Near(10 * x),
        "class": lambda x: [Plain, Record][x],
        "function": lambda x: [model, large][x],
    }
"""
TESTS = """
    from values import *

    @pytest.mark.parametrize("name", VALUES)
    def test_equal(ddp, name):
        ddp.assert_same(VALUES[name](0))
        ddp.assert_close(VALUES[name](0))

    @pytest.mark.parametrize("name", VALUES)
    def test_other_on_rank_2(ddp, name):
        ddp.assert_same(VALUES[name](int(ddp.rank == 2)))

    @pytest.mark.parametrize("name", VALUES)
    def test_not_close_on_rank_1(ddp, name):
        ddp.assert_close(VALUES[name](int(ddp.rank == 1)))

    @pytest.mark.parametrize("name", VALUES)
    def test_not_different(ddp, name):
        ddp.assert_differ(VALUES[name](int(ddp.rank == 1)))

    @pytest.mark.parametrize("value", [
        lambda rank: torch.tensor([0.0 if rank else -0.0, float("nan")]),
        lambda rank: -0.0 if rank else 0.0,
        lambda rank: torch.tensor([]),
        lambda rank: {n: 0 for n in ((1, 2) if rank else (2, 1))},
        lambda rank: [Near(rank), Near(10 + rank)],
        lambda rank: Record(0, ignored=rank),
        lambda rank: torch.zeros(4, 2).t() if rank else torch.zeros(2, 4),
        lambda rank: torch.tensor([2.0, rank], requires_grad=bool(rank))[:1],
    ])
    def test_equal_though_unlike(ddp, value):
        ddp.assert_same(value(ddp.rank))

    @pytest.mark.parametrize("value", [
        lambda rank: 1.0 + 1e-9 * rank,
        lambda rank: [torch.tensor([1.0, float("inf"), float("nan")]) * (1 + 1e-7 * rank), "same"],
        lambda rank: np.array([1.0]) + 1e-9 * rank,
    ])
    def test_close(ddp, value):
        ddp.assert_close(value(ddp.rank))
        with pytest.raises(AssertionError):
            ddp.assert_same(value(ddp.rank))

    def test_tolerances(ddp):
        ddp.assert_close(torch.tensor(1.0 + 0.1 * ddp.rank), rtol=0, atol=0.3)
        ddp.assert_close(1.0 + 0.1 * ddp.rank, rtol=0.3, atol=0)
        with pytest.raises(AssertionError):
            ddp.assert_close(1.0 + 0.1 * ddp.rank, rtol=0, atol=0.15)
        with pytest.raises(ValueError, match="both"):
            ddp.assert_close(1.0, rtol=1)

    class Key:
        def __repr__(self):
            return "key"

    def test_names_that_are_equal(ddp):
        value = {Key(): 0, Key(): 0, 1.0: torch.ones(2), "nan": torch.tensor([1.0, float("nan")])}
        ddp.assert_same(value)
        value = dict.fromkeys([Key(), Key()], 0)
        value[next(iter(value))] = ddp.rank
        with pytest.raises(AssertionError, match="1 of 3 entries differ: .key.$"):
            ddp.assert_same(value)
        with pytest.raises(AssertionError, match="1 of 3 entries differ: .key.$"):
            ddp.assert_close(value)

    def test_large_integers(ddp):
        value = torch.tensor([2**62 + ddp.rank])
        with pytest.raises(AssertionError, match="rank 1: 1 of 1 .* greatest difference 1 at .0.*"):
            ddp.assert_close(value)
        ddp.assert_close(value, rtol=1e-7, atol=0)
        with pytest.raises(AssertionError):
            ddp.assert_close(torch.tensor([2**30 + ddp.rank]), rtol=1e-12, atol=0)

    def test_scalars_that_are_far(ddp):
        text = "rank 2  3(.|\\n)*value is float; allowed: 1e-07 absolute, 1e-07 relative"
        with pytest.raises(AssertionError, match=text + "\\nrank 1: 1 of 1 .* difference 1\\n"):
            ddp.assert_close(1.0 + ddp.rank)

    def test_far_in_many_chunks(ddp):
        value = torch.zeros(3, 70000)
        value[0, 5] = value[2, 69999] = 0.5 * ddp.rank
        value[1, 7] = float("nan") if ddp.rank == 2 else 0
        text = r"value.0, 5.(.|\\n)*rank 1: 2 of 210000 .* difference 0.5 at .0, 5."
        with pytest.raises(AssertionError, match=text) as error:
            ddp.assert_close(value)
        assert "rank 2: 3 of 210000 elements" in str(error.value)
        assert "greatest difference inf at [1, 7]" in str(error.value)
        assert len(set(ddp.gather(str(error.value)))) == 1

    def test_different(ddp):
        ddp.assert_differ(torch.initial_seed())
        ddp.assert_differ([torch.tensor([ddp.rank]), "same"])

    def test_shards(ddp):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (3,))
        for placement in (Shard(0), Replicate()):
            shards = distribute_tensor(torch.arange(7.0), mesh, [placement])
            ddp.assert_same(shards)
        shards.to_local()[1] = ddp.rank
        with pytest.raises(AssertionError, match=r"value\\[1\\]"):
            ddp.assert_same(shards)

    @pytest.mark.ddp(world_size=4)
    def test_replicas_of_shards(ddp):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (2, 2))
        shards = distribute_tensor(torch.zeros(70001), mesh, [Replicate(), Shard(0)])
        ddp.assert_close(shards)
        shards.to_local()[-1] = ddp.rank == 3
        text = r"value\\[34999\\](.|\\n)*rank 1  0\\n  rank 3  1"
        with pytest.raises(AssertionError, match=text):
            ddp.assert_same(shards)
        # A shard has two chunks, the other one.
        longer = distribute_tensor(torch.zeros(2**17 + 1), mesh, [Replicate(), Shard(0)])
        longer.to_local()[-1] = ddp.rank
        for check in (ddp.assert_same, ddp.assert_close):
            with pytest.raises(AssertionError, match=r"value\\[65536\\]") as error:
                check(longer)
            assert len(set(ddp.gather(str(error.value)))) == 1
        far = r"\\nrank 3: 1 of \\d+ elements differ from rank 1; greatest difference 1 at .34999."
        with pytest.raises(AssertionError, match=f"{text}(.|\\n)*{far}"):
            ddp.assert_close(shards)

    def test_cannot_be_compared(ddp):
        import threading

        with pytest.raises(TypeError, match=r"\\[0\\] is of .*lock"):
            ddp.assert_same([threading.Lock()])

    def test_one_does_not_arrive(ddp):
        if ddp.rank != 1:
            ddp.assert_same(ddp.rank)

    def test_another_operation(ddp):
        ddp.assert_same(1) if ddp.rank else ddp.gather(1)
"""
