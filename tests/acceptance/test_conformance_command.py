"""``python -m ddp_conformance`` and the report, as users meet them: real processes and ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import ddp_conformance
import pytest
from ddp_conformance.command import main
from ddp_conformance.command_request import Request
from ddp_conformance.registry import all_kinds, known_ids
from jsonschema import Draft202012Validator

SCHEMA = json.loads((Path(ddp_conformance.__file__).parent / "report.schema.json").read_text())

PARTS = """
    from torch.utils.data.distributed import DistributedSampler

    from ddp_conformance import Sampler


    def strided(case):
        return range(case.rank, case.size, case.world_size)


    def everything(case):
        return range(case.size)


    def no_epoch(sampler, epoch):
        pass


    def distributed(case):
        return DistributedSampler(case.dataset, case.world_size, case.rank)


    FROZEN = Sampler(distributed, {"pads", "shuffles"}, "frozen", set_epoch=no_epoch)
"""

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
    "exits": ("unknown", "exited with code 0 before it reported call"),
    "needs_a_gpu": ("unknown", "size 1, rank 0: "),
    "unhashable": ("unknown", "size 1, rank 0: TypeError: [1] is not a data set index"),
    "endless": ("failed", "rank 0 did not end the epoch within 18 batches"),
    "endless_in_workers": ("failed", "rank 0 did not end the epoch within 18 batches"),
    "hangs_in_a_barrier": ("unknown", "deadlock: rank 0 waits in ddp.gather #"),
    "strided": ("passed", ""),
}

HANGS = {"hangs": ("unknown", "timed out after 2 s: ranks 0-1 have not finished ")}
"""Apart from the others, which on a busy machine may well need 2 seconds."""


@dataclass(frozen=True)
class Done:
    """A program that has ended."""

    code: int
    text: str
    directory: Path

    @property
    def report(self) -> dict[str, Any]:
        """The report that it wrote, once it is known to be in the documented form."""
        found: dict[str, Any] = json.loads((self.directory / "report.json").read_text())
        Draft202012Validator(SCHEMA).validate(found)
        return found

    def verdict(self, guarantee: str, subject: str, world_size: int = 2) -> dict[str, Any]:
        """The only entry for these."""
        (found,) = [
            entry
            for entry in self.report["verdicts"]
            if (entry["guarantee"], entry["subject"]) == (guarantee, subject)
            and entry["world_size"] == world_size
        ]
        return dict(found)


def run(directory: Path, *arguments: str) -> Done:
    """``python -m`` in the directory, with all output in one text."""
    outer = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    with (directory / "output").open("w+") as output:
        code = subprocess.call(
            ["timeout", "-k", "5", "300", sys.executable, "-m", *arguments],
            cwd=directory,
            env=outer,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        output.seek(0)
        return Done(code, output.read(), directory)


def written(directory: Path, **files: str) -> Path:
    for name, text in files.items():
        (directory / f"{name}.py").write_text(dedent(text))
    return directory


# ---------------------------------------------------------------- verdicts


def test_a_broken_guarantee_ends_in_1(tmp_path: Path) -> None:
    subjects = ("--sampler", "parts:strided", "--sampler", "parts:everything")
    done = run(
        written(tmp_path, parts=PARTS),
        *("ddp_conformance", *subjects, "-t", "exact", "-t", "uneven", "-w", "1", "2"),
        *("--report", "report.json", "--nemesis-seed", "7"),
    )
    assert done.code == 1, done.text
    assert done.verdict("SMP-01", "strided")["verdict"] == "passed"
    broken = done.verdict("SMP-01", "everything")
    assert broken["verdict"] == "failed"
    assert broken["witness"][0] == "size 1, epoch 0: index 0 delivered by ranks 0 and 1"
    assert done.verdict("SMP-01", "everything", 1)["verdict"] == "passed"
    skipped = done.verdict("SMP-02", "strided")
    assert (skipped["verdict"], skipped["reason"]) == (
        "skipped",
        "SMP-02 does not bind the trait 'uneven'",
    )
    assert (done.report["conforms"], done.report["nemesis_seed"]) == (False, 7)
    assert {"passed": 3, "failed": 1} in [g["verdicts"] for g in done.report["guarantees"]]
    assert "  SMP-01 *    passed    FAILED" in done.text
    assert "  to be seen again with --ddp-nemesis-seed=7" in done.text
    assert "Traceback" not in done.text
    assert "command_suite.py" not in done.text


def test_what_is_expected_ends_in_0_and_is_strict(tmp_path: Path) -> None:
    frozen = ("ddp_conformance", "--sampler", "parts:FROZEN", "-w", "2", "--report", "report.json")
    right = run(written(tmp_path, parts=PARTS), *frozen, "--expect", "SMP-04=issue 12")
    assert right.code == 0, right.text
    found = right.verdict("SMP-04", "frozen")
    assert (found["verdict"], found["reason"]) == ("expected", "issue 12")
    assert "has the order of epoch 0 again" in found["witness"][0]
    assert right.report["conforms"]
    wrong = run(tmp_path, *frozen, "--check", "SMP-01", "--expect", "SMP-01=issue 13")
    assert wrong.code == 1, wrong.text
    found = wrong.verdict("SMP-01", "frozen")
    assert found["verdict"] == "failed"
    assert found["reason"].endswith("(issue 13), but holds; remove it from expected_failures")


@pytest.mark.parametrize(("fates", "timeout"), [(FATES, "100"), (HANGS, "2")])
def test_a_bad_subject_gets_a_verdict_for_each_guarantee(
    fates: dict[str, tuple[str, str]], timeout: str, tmp_path: Path
) -> None:
    subjects = [part for name in fates for part in ("--loader", f"bad_parts:{name}")]
    done = run(
        written(tmp_path, bad_parts=BAD_PARTS),
        *("ddp_conformance", *subjects, "-w", "2", "--check", "SMP-01", "--check", "SMP-03"),
        *("--trait", "exact", "--timeout", timeout, "--report", "report.json"),
    )
    assert done.code == 1, done.text
    assert_fates(done, fates)
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

        @pytest.mark.ddp(timeout=2)
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
        assert done.verdict("SMP-03", subject)["verdict"] == "skipped"


def test_a_missing_gpu_is_a_skip_where_it_is_declared(tmp_path: Path) -> None:
    done = run(
        written(tmp_path, parts=PARTS),
        *("ddp_conformance", "--sampler", "parts:strided", "--trait", "gpu", "-w", "64"),
        *("--check", "SMP-01", "--report", "report.json"),
    )
    assert done.code == 0, done.text
    found = done.verdict("SMP-01", "strided", 64)
    assert found["verdict"] == "skipped"
    assert found["reason"].startswith("NCCL needs a GPU for each rank: 64 needed")


def test_the_list_names_all(tmp_path: Path) -> None:
    done = run(tmp_path, "ddp_conformance", "--list")
    assert done.code == 0
    for name in known_ids():
        assert name in done.text
    assert "SMP-03   MUST   --sampler, --loader; needs evaluates" in done.text
    assert "  pads             repeats up to world size - 1 samples" in done.text
    assert max(map(len, done.text.splitlines())) <= 100


# ---------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is nothing to check; name a factory with one of --"),
        (["--sampler", "parts"], "--sampler parts: write it as module:name"),
        (["--sampler", "absent:x"], "absent cannot be imported (ModuleNotFoundError"),
        (["--sampler", "parts:stridded"], "parts has no 'stridded'; did you mean 'strided'?"),
        (["--loader", "parts:FROZEN"], "it is a sampler; write --sampler parts:FROZEN"),
        (["--sampler", "parts:no_epoch", "-t", "pad"], "unknown trait 'pad'; did you mean 'pads'"),
        (["--sampler", "parts:strided", "--check", "SMP-1"], "did you mean SMP-01?"),
        (["--sampler", "parts:strided", "--check", "MET-01"], "does not apply to these subjects"),
        (["--sampler", "parts:strided", "--expect", "SMP-01"], "--expect SMP-01: give a reason"),
        (["--sampler", "parts:strided", "--expect", "SMP-99=x"], "there is no guarantee 'SMP-99'"),
        (["--sampler", "parts:strided", "--expect", "SMP-04=x"], "SMP-04 applies to none of the"),
        (["--sampler", "parts:strided", "-w", "0"], "'0' is no number of ranks; give 1 to 64"),
        (["--sampler", "parts:strided", "--timeout", "no"], "'no' is no time; give seconds"),
        (["--sampler", "parts:strided", "--report", "no/r.json"], "'no/r.json' cannot be written"),
        (["--sampler", "parts:strided", "--nemesis-seed", "-1"], "'-1' is no number; give 0 or"),
        (["--smapler", "parts:strided"], "unrecognized arguments: --smapler"),
    ],
)
def test_misuse_ends_in_2_and_names_the_fix(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(written(tmp_path, parts=PARTS))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "parts", raising=False)
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err
    monkeypatch.delitem(sys.modules, "parts", raising=False)


def test_a_request_survives_its_way() -> None:
    request = Request((("loader", "a:b"),), ("pads",), ("SMP-01",), (("SMP-04", "é"),), (1, 2))
    assert Request.from_json(request.to_json()) == request


def test_every_kind_has_an_option() -> None:
    assert {"sampler", "loader", "datamodule", "metric", "writer"} <= set(all_kinds())
