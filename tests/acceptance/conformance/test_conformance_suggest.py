"""``python -m ddp_conformance --suggest``, on real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.conformance.conformance_command import run, written

PARTS = """
    from torch.utils.data import DataLoader, DistributedSampler

    from ddp_conformance import Sampler


    def full_batches(case):
        sampler = DistributedSampler(case.dataset, case.world_size, case.rank)
        return DataLoader(case.dataset, 4, sampler=sampler, drop_last=True)


    def everything(case):
        return range(case.size)


    def strided(case):
        return range(case.rank, case.size, case.world_size)


    STRIDED = Sampler(strided, name="mine")
"""


@pytest.mark.parametrize(
    ("part", "code", "lines"),
    [
        (
            "full_batches",
            0,
            [
                "fits: Loader(full_batches, traits={'drops', 'pads'}, batch_size=4)",
                "  would break, with 'evaluates': SMP-03: size 1, epoch 0: index 0 delivered by no",
                "  may declare 'shuffles': SMP-04",
            ],
        ),
        ("STRIDED", 0, ["fits: Sampler(mine, traits={'exact'})", "  needs 'uneven': SMP-02: "]),
        (
            "everything",
            1,
            [
                "no description fits; the closest is Sampler(everything, traits=",
                "  SMP-01 failed: size ",
            ],
        ),
    ],
)
def test_the_description_that_fits_is_named(
    part: str, code: int, lines: list[str], tmp_path: Path
) -> None:
    asked = ("ddp_conformance", "--suggest", f"parts:{part}", "-w", "2")
    done = run(written(tmp_path, parts=PARTS), *asked)
    assert done.code == code, done.text
    for line in lines:
        assert line in done.text
    assert "FAILURES" not in done.text
