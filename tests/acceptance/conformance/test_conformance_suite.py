"""``parametrize_with_checks`` as users meet it, in a suite of their own."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from pytest_ddp.system import processes
from tests.acceptance.suite import Suite

SUITE = """
    from torch.utils.data.distributed import DistributedSampler

    from ddp_conformance import Sampler, parametrize_with_checks


    def strided(case):
        return range(case.rank, case.size, case.world_size)


    def everything(case):
        return range(case.size)


    def broken(case):
        raise LookupError(f"rank {case.rank} has no shard")


    def frozen(case):
        return DistributedSampler(case.dataset, case.world_size, case.rank)


    def no_epoch(sampler, epoch):
        pass


    @parametrize_with_checks(
        [Sampler(strided, {"exact", "uneven"}), Sampler(everything), Sampler(broken)],
        world_size=[2],
    )
    def test_plain(subject, check):
        check(subject)


    @parametrize_with_checks(
        [Sampler(frozen, {"pads", "shuffles"}, set_epoch=no_epoch)],
        expected_failures={"SMP-04": "nobody calls set_epoch", "SMP-02": "wrongly expected"},
        world_size=[1, 2],
    )
    def test_expected(subject, check):
        check(subject)
"""


UNKNOWN = """
    from ddp_conformance import Sampler, parametrize_with_checks


    @parametrize_with_checks([Sampler(len)], expected_failures={"SMP-44": "typo"})
    def test_it(subject, check):
        check(subject)
"""

VERDICTS = {
    "test_plain[ws2-strided-SMP-01]": "passed",
    "test_plain[ws2-everything-SMP-01]": "failed",
    "test_plain[ws2-everything-SMP-02]": "passed",
    "test_plain[ws2-broken-SMP-01]": "failed",
    "test_expected[ws1-frozen-SMP-01]": "passed",
    "test_expected[ws2-frozen-SMP-01]": "passed",
    "test_expected[ws1-frozen-SMP-02]": "passed",
    "test_expected[ws2-frozen-SMP-02]": "failed",
    "test_expected[ws1-frozen-SMP-04]": "xfailed",
    "test_expected[ws2-frozen-SMP-04]": "xfailed",
}

EVIDENCE = {
    "test_plain[ws2-everything-SMP-01]": (
        "ddp_conformance.GuaranteeError: SMP-01 is broken by everything at world size 2:",
        "size 1, epoch 0: index 0 delivered by ranks 0 and 1",
        "SMP-01: In one epoch every sample MUST be delivered by at least one rank",
    ),
    "test_plain[ws2-broken-SMP-01]": (
        "SMP-01 is undecided: broken raised:",
        "size 1, rank 0: LookupError: rank 0 has no shard",
    ),
    "test_expected[ws2-frozen-SMP-02]": (
        "SMP-02 is expected to fail for frozen (wrongly expected), but holds; remove it from",
    ),
}


def test_verdicts(suite: Suite) -> None:
    suite.write("test_suite.py", SUITE)
    run = suite.run()
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert {name: run[name].verdict for name in VERDICTS} == VERDICTS
    for name, lines in EVIDENCE.items():
        for line in lines:
            assert line in run[name].text
    # What pytest says of the test's arguments is short, and the reason comes soon.
    text = run["test_plain[ws2-everything-SMP-01]"].text
    assert "subject = <sampler everything>, check = <SMP-01>\n" in text
    assert text.index("SMP-01 is broken by") < 400, text


def test_an_unknown_guarantee_is_named_at_collection(suite: Suite) -> None:
    suite.write("test_unknown.py", UNKNOWN)
    run = suite.run("--collect-only", extra=())
    assert run.returncode == pytest.ExitCode.INTERRUPTED
    (text,) = run.collect_errors.values()
    assert "ValueError: expected_failures: there is no guarantee 'SMP-44'; known:" in text


HASHED = """
    import torch.distributed as dist
    from ddp_conformance import Sampler, parametrize_with_checks
    from ddp_conformance.sampling.subjects import sampler_indices as plain


    def dealt_out(case, names):
        return [int(name.removeprefix("shard-")) for name in names[case.rank :: case.world_size]]


    def names(case):
        return {f"shard-{index:05}" for index in range(case.size)}


    def of_a_set(case):
        return dealt_out(case, list(names(case)))


    def of_a_sorted_set(case):
        return dealt_out(case, sorted(names(case)))


    def of_rank_zero(case):
        given = [list(names(case))]
        dist.broadcast_object_list(given, src=0)
        return dealt_out(case, given[0])


    @parametrize_with_checks(
        [
            Sampler(of_a_set, {"uneven"}),
            Sampler(of_a_sorted_set, {"uneven"}),
            Sampler(of_rank_zero, {"uneven"}),
            Sampler(of_a_set, {"uneven"}, "of_a_set_by_lambda", indices=lambda i: plain(i)),
            Sampler(lambda case: dealt_out(case, sorted(names(case))), {"uneven"}, "of_a_lambda"),
        ],
        world_size=[2],
    )
    def test_order(subject, check):
        check(subject)
"""

BY_VARIABLE = "hash seed shared by PYTHONHASHSEED"


@pytest.mark.parametrize(
    ("method", "seed", "given"),
    [
        ("fork", None, ["failed", "passed", "passed", "failed", "passed"]),
        ("spawn", None, ["failed", "passed", "passed", "failed", "passed"]),
        ("fork", "1", [BY_VARIABLE] * 5),
    ],
)
def test_the_order_of_a_set_shows(
    suite: Suite, method: str, seed: str | None, given: Sequence[str]
) -> None:
    suite.write("test_hashed.py", HASHED)
    options = ("-p", "ddp_conformance.plugin", "--ddp-conformance-report=report.json")
    suite.run(
        *("-k", "SMP-01", f"--ddp-start-method={method}", *options), env={"PYTHONHASHSEED": seed}
    )
    judged = json.loads((suite.directory / "report.json").read_text())["verdicts"]
    by_name = {one["subject"]: one["reason"] or one["verdict"] for one in judged}
    names = ("of_a_set", "of_a_sorted_set", "of_rank_zero", "of_a_set_by_lambda", "of_a_lambda")
    assert [by_name[name] for name in names] == given


SERVED = """
    import os
    from pathlib import Path

    import pytest
    from ddp_conformance.launched.start.kept_servers import in_process_of


    @pytest.mark.ddp(world_size=[1, 2])
    def test_serve(ddp):
        ddp.gather(ddp.rank == 0 and in_process_of(0, os.getppid))  # started by rank 0
        Path(f"{ddp.world_size}-{ddp.rank}").write_text(str(in_process_of(0, os.getppid)))
"""


def test_a_server_lives_as_long_as_its_session(suite: Suite) -> None:
    suite.write("test_served.py", SERVED)
    run = suite.run()
    assert run.returncode == pytest.ExitCode.OK, run.stdout
    assert "warning" not in run.stdout
    (server,) = {(suite.directory / name).read_text() for name in ("1-0", "2-0", "2-1")}
    assert processes.process_of(int(server)) is None
