"""Bad parts of every kind get a verdict for each guarantee: no traceback of ours, and no hang."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.conformance.conformance_command import Done, run, written

BAD_PARTS = """
    import itertools
    import os
    import signal
    import threading

    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, IterableDataset


    def strided(case):
        return [{"index": i} for i in range(case.rank, case.size, case.world_size)]


    def raises(case):
        raise LookupError(f"rank {case.rank} has no shard")


    def wrong_type(case):
        return 17


    def hangs(case):
        if case.rank == 1:
            threading.Event().wait()
        return strided(case)


    def hangs_in_a_barrier(case):
        if case.rank == 1:
            dist.barrier()
        return strided(case)


    def raises_where_others_wait(case):
        if case.rank == 1:
            raise LookupError("no shard")
        dist.barrier()
        return strided(case)


    def crashes(case):
        if case.rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        return strided(case)


    def exits(case):
        os._exit(0)


    def needs_a_gpu(case):
        return torch.zeros(case.size, device="cuda")


    def unhashable(case):
        return [{"index": [[1]]}]


    def endless(case):
        return itertools.repeat({"index": 0})


    class Stream(IterableDataset):
        def __iter__(self):
            return itertools.repeat({"index": 0})


    def endless_in_workers(case):
        return DataLoader(Stream(), 2, num_workers=1)
"""

FATES = {
    "raises": ("unknown", "size 1, rank 0: LookupError: rank 0 has no shard ("),
    "wrong_type": ("unknown", "size 1, rank 0: TypeError: 'int' object is not iterable"),
    "crashes": ("unknown", "rank 1 died of SIGSEGV in call"),
    "exits": ("unknown", "exited with code 0 before reporting call"),
    "needs_a_gpu": ("unknown", "size 1, rank 0: "),
    "unhashable": ("unknown", "size 1, rank 0: TypeError: [1] is not a data set index"),
    "endless": ("failed", "rank 0 did not end the epoch within 18 batches"),
    "endless_in_workers": ("failed", "rank 0 did not end the epoch within 18 batches"),
    "hangs_in_a_barrier": ("unknown", "deadlock: rank 0 waits in ddp.gather #"),
    "raises_where_others_wait": (
        "unknown",
        "while handling LookupError: no shard (rank 1, bad_parts.py:38): deadlock: rank 0 waits in "
        "barrier #1",
    ),
    "strided": ("passed", ""),
}

EVERY_KIND = """
    import os
    import signal
    import sys


    def rank_of(arguments):
        # A factory gets a Case, and a program its arguments.
        (first, *_) = arguments or ([],)
        return getattr(first, "rank", os.environ["RANK"])


    def raises(*arguments):
        raise LookupError(f"rank {rank_of(arguments)} has none")


    def wrong_type(*arguments):
        return 17


    def crashes(*arguments):
        if str(rank_of(arguments)) == "1":
            os.kill(os.getpid(), signal.SIGSEGV)


    def leaves(*arguments):
        sys.exit(3)


    def interrupts(*arguments):
        raise KeyboardInterrupt
"""

FATES_OF_KINDS = {
    ("sampler", "raises"): ("unknown", "rank 0: LookupError: rank 0 has none"),
    ("sampler", "leaves"): ("unknown", "SystemExit: 3"),
    ("sampler", "interrupts"): ("unknown", "KeyboardInterrupt"),
    ("datamodule", "raises"): ("unknown", "rank 0: LookupError: rank 0 has none"),
    ("datamodule", "wrong_type"): ("unknown", "'int' object has no attribute 'datamodule'"),
    ("metric", "wrong_type"): ("unknown", "'int' object has no attribute 'update'"),
    ("metric", "crashes"): ("unknown", "rank 1 died of SIGSEGV in call"),
    ("metric", "leaves"): ("unknown", "SystemExit: 3"),
    ("training", "raises"): ("failed", "rank 0 raised LookupError: rank 0 has none at every_kind"),
    ("training", "wrong_type"): ("failed", "rank 0 raised SystemExit: 17"),
    ("training", "crashes"): ("failed", "rank 1 died of SIGSEGV"),
    ("training", "leaves"): ("failed", "rank 0 raised SystemExit: 3"),
}
"""Fates for the first guarantee of each kind."""

FIRST = {"sampler": "SMP-01", "datamodule": "WIN-01", "metric": "MET-01", "training": "LIF-01"}

HANGS = {"hangs": ("unknown", "timed out after 6 s: rank 1 has not finished call")}
"""Apart from the others, which on a busy machine may well need 2 seconds."""


@pytest.mark.parametrize(("fates", "timeout"), [(FATES, "100"), (HANGS, "6")])
def test_a_bad_subject_gets_a_verdict_for_each_guarantee(
    fates: dict[str, tuple[str, str]], timeout: str, tmp_path: Path
) -> None:
    subjects = [*(f"bad_parts:{name}" for name in fates), "--as", "loader"]
    done = run(
        written(tmp_path, bad_parts=BAD_PARTS),
        *("ddp_conformance", *subjects, "-w", "2", "--check", "SMP-01", "--check", "SMP-03"),
        *("--trait", "exact", "--timeout", timeout, "--report", "report.json"),
    )
    assert done.code == 1, done.text
    assert_fates(done, fates)
    assert "Traceback" not in done.text


@pytest.mark.parametrize("kind", FIRST)
def test_a_factory_of_every_kind_may_be_bad(kind: str, tmp_path: Path) -> None:
    fates = {name: fate for (of, name), fate in FATES_OF_KINDS.items() if of == kind}
    done = run(
        written(tmp_path, every_kind=EVERY_KIND),
        *("ddp_conformance", *(f"every_kind:{name}" for name in fates), "--as", kind),
        *("--check", FIRST[kind], "-w", "2", "--timeout", "100", "--report", "report.json"),
    )
    assert done.code == 1, done.text
    for name, (verdict, evidence) in fates.items():
        found = done.verdict(FIRST[kind], name)
        assert found["verdict"] == verdict, found
        assert evidence in " ".join([found["reason"], *found["witness"]])
    assert "Traceback" not in done.text


def test_the_same_in_pytest(tmp_path: Path) -> None:
    suite = f"""
        import bad_parts
        import pytest
        from ddp_conformance import Loader, parametrize_with_checks

        def loaders(names):
            return [Loader(getattr(bad_parts, name), {{"exact"}}) for name in names]

        @parametrize_with_checks(loaders({list(FATES)}), world_size=[2])
        def test_conforms(subject, check):
            check(subject)

        @pytest.mark.ddp(timeout=6)
        @parametrize_with_checks(loaders({list(HANGS)}), world_size=[2])
        def test_ends(subject, check):
            check(subject)
    """
    written(tmp_path, bad_parts=BAD_PARTS, test_suite=suite)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    done = run(
        tmp_path,
        *("pytest", "-q", "-p", "no:cacheprovider", "-p", "ddp_conformance.plugin"),
        *("--ddp-conformance-report=report.json", "-k", "SMP-01 or SMP-03"),
    )
    assert done.code == pytest.ExitCode.TESTS_FAILED, done.text
    assert_fates(done, FATES | HANGS)


def assert_fates(done: Done, fates: dict[str, tuple[str, str]]) -> None:
    for subject, (verdict, evidence) in fates.items():
        found = done.verdict("SMP-01", subject)
        assert found["verdict"] == verdict, found
        assert evidence in " ".join([found["reason"], *found["witness"]])
        assert done.verdict("SMP-03", subject)["verdict"] == "not bound"
