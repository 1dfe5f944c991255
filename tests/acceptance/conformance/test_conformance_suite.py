"""``parametrize_with_checks`` as users meet it, in a suite of their own."""

from __future__ import annotations

import pytest

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
        "SMP-01: In one epoch every sample MUST be delivered by at least one rank",
        "everything breaks it at world size 2:",
        "size 1, epoch 0: index 0 delivered by ranks 0 and 1",
    ),
    "test_plain[ws2-broken-SMP-01]": (
        "SMP-01 is undecided: broken could not be judged:",
        "size 1, rank 0: LookupError: rank 0 has no shard (",
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
    assert text.index("SMP-01: In one epoch") < 400, text


def test_an_unknown_guarantee_is_named_at_collection(suite: Suite) -> None:
    suite.write("test_unknown.py", UNKNOWN)
    run = suite.run("--collect-only", extra=())
    assert run.returncode == pytest.ExitCode.INTERRUPTED
    (text,) = run.collect_errors.values()
    assert "ValueError: expected_failures: there is no guarantee 'SMP-44'; known:" in text


HASHED = """
    from ddp_conformance import Sampler, parametrize_with_checks


    def of_a_set(case):
        names = list({f"shard-{index}" for index in range(case.size)})
        return [int(name.removeprefix("shard-")) for name in names[case.rank :: case.world_size]]


    def of_a_sorted_set(case):
        names = sorted({f"shard-{index:05}" for index in range(case.size)})
        return [int(name.removeprefix("shard-")) for name in names[case.rank :: case.world_size]]


    @parametrize_with_checks(
        [Sampler(of_a_set, {"uneven"}), Sampler(of_a_sorted_set, {"uneven"})], world_size=[2]
    )
    def test_order(subject, check):
        check(subject)
"""


def test_the_order_of_a_set_shows_on_spawned_ranks(suite: Suite) -> None:
    suite.write("test_hashed.py", HASHED)
    run = suite.run("-k", "SMP-01", "--ddp-start-method=spawn")
    assert run["test_order[ws2-of_a_set-SMP-01]"].verdict == "failed"
    assert run["test_order[ws2-of_a_sorted_set-SMP-01]"].verdict == "passed"
