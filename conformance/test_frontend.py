"""``parametrize_with_checks`` as users meet it: one run of pytest over a small suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

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

EVIDENCE = """
    SMP-01: In one epoch every sample MUST be delivered by at least one rank
    everything breaks it at world size 2:
    size 1, epoch 0: index 0 delivered by ranks 0 and 1
    SMP-01 is undecided: broken could not be judged:
    size 1, rank 0: LookupError: rank 0 has no shard (
    SMP-02 is expected to fail for frozen (wrongly expected), but holds; remove it from
    SMP-03 needs the trait 'evaluates'
    ERROR collecting test_unknown.py
    ValueError: expected_failures: there is no guarantee 'SMP-44'; known:
"""


OPTIONS = ("-p", "no:cacheprovider", "--continue-on-collection-errors")


def run_pytest(directory: Path, suites: dict[str, str]) -> tuple[int, str]:
    """Exit code and output of a pytest of its own over some files."""
    for name, suite in suites.items():
        (directory / name).write_text(dedent(suite))
    (directory / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-rxsf", *OPTIONS],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


def test_verdicts(tmp_path: Path) -> None:
    code, text = run_pytest(tmp_path, {"test_suite.py": SUITE, "test_unknown.py": UNKNOWN})
    assert code == pytest.ExitCode.TESTS_FAILED
    for name, outcome in {
        "test_plain[ws2-strided-SMP-01]": "PASSED",
        "test_plain[ws2-strided-SMP-02]": "SKIPPED",
        "test_plain[ws2-strided-SMP-03]": "SKIPPED",
        "test_plain[ws2-everything-SMP-01]": "FAILED",
        "test_plain[ws2-everything-SMP-02]": "PASSED",
        "test_plain[ws2-broken-SMP-01]": "FAILED",
        "test_expected[ws1-frozen-SMP-01]": "PASSED",
        "test_expected[ws2-frozen-SMP-01]": "PASSED",
        "test_expected[ws1-frozen-SMP-02]": "PASSED",
        "test_expected[ws2-frozen-SMP-02]": "FAILED",
        "test_expected[ws1-frozen-SMP-04]": "XFAIL",
        "test_expected[ws2-frozen-SMP-04]": "XFAIL",
    }.items():
        assert f"::{name} {outcome}" in text, f"{name} is not {outcome} in\n{text}"
    for line in filter(None, map(str.strip, EVIDENCE.splitlines())):
        assert line in text, f"{line!r} is not in\n{text}"
