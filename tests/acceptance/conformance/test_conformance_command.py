"""``python -m ddp_conformance`` and the report, as users meet them: real processes and ranks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from ddp_conformance.framework.registry import all_kinds, known_ids
from ddp_conformance.frontend.command import main
from ddp_conformance.frontend.command_request import Request, cells_of, subject_at

from tests.acceptance.conformance.conformance_command import run, written

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

OWN_GENERATOR = """
    import numpy as np
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    from ddp_conformance import Loader


    class Crops(Dataset):
        def __init__(self, size):
            self.size, self.generator = size, np.random.default_rng(0)

        def __len__(self):
            return self.size

        def __getitem__(self, index):
            return {"index": index, "crop": (self.generator.random(), self.generator.random())}


    def crops(case):
        data = Crops(case.size)
        sampler = DistributedSampler(data, case.world_size, case.rank)
        return DataLoader(data, 2, sampler=sampler, num_workers=case.num_workers)


    NAMED = Loader(crops, {"augments", "pads"}, "named", drawn=lambda batch: batch["crop"])
"""

ODD_PARTS = """
    NUMBER = 17
    NAMELESS = lambda *arguments: None


    class Unreadable:
        __qualname__ = "unreadable"

        def __repr__(self):
            raise LookupError("no repr")


    UNREADABLE = Unreadable()


    def __getattr__(name):
        if name == "lazy":
            raise LookupError("not today")
        raise AttributeError(name)
"""

ODD_MODULES = {"quits": "import sys; sys.exit(0)", "broken": "def ("}

# ---------------------------------------------------------------- verdicts


def test_a_broken_guarantee_ends_in_1(tmp_path: Path) -> None:
    subjects = ("parts:strided", "parts:everything", "--as", "sampler")
    done = run(
        written(tmp_path, parts=PARTS),
        *("ddp_conformance", *subjects, "-t", "exact", "-t", "uneven", "-w", "1", "2"),
        *("--report", "report.json", "--nemesis-seed", "7"),
    )
    assert done.code == 1, done.text
    kept = done.verdict("SMP-01", "strided")
    assert (kept["verdict"], kept["reason"]) == ("passed", "")
    broken = done.verdict("SMP-01", "everything")
    assert broken["verdict"] == "failed"
    assert broken["witness"][0] == "size 1, epoch 0: index 0 delivered by ranks 0 and 1"
    assert done.verdict("SMP-01", "everything", 1)["verdict"] == "passed"
    not_bound = done.verdict("SMP-02", "strided")
    assert (not_bound["verdict"], not_bound["reason"]) == (
        "not bound",
        "SMP-02 does not bind the trait 'uneven'",
    )
    assert (done.report["conforms"], done.report["nemesis_seed"]) == (False, 7)
    assert {"passed": 3, "failed": 1} in [g["verdicts"] for g in done.report["guarantees"]]
    assert "  SMP-01 *    passed    FAILED" in done.text
    assert "  seen with --ddp-nemesis-seed=7" in done.text
    assert "Traceback" not in done.text
    assert "command_suite.py" not in done.text


def test_what_is_expected_ends_in_0_and_is_strict(tmp_path: Path) -> None:
    frozen = ("ddp_conformance", "parts:FROZEN", "--report", "report.json")
    expected = ("-w", "1", "--expect", "SMP-04=issue 12")
    right = run(written(tmp_path, parts=PARTS), *frozen, *expected)
    assert right.code == 0, right.text
    found = right.verdict("SMP-04", "frozen", 1)
    assert (found["verdict"], found["reason"]) == ("expected", "issue 12")
    assert "has the order of epoch 0 again" in found["witness"][0]
    assert right.report["conforms"]
    # What a single rank keeps is no surprise.
    wrongly = ("-w", "2", "--check", "SMP-01", "--expect", "SMP-01=issue 13")
    wrong = run(tmp_path, *frozen, *wrongly)
    assert wrong.code == 1, wrong.text
    found = wrong.verdict("SMP-01", "frozen")
    assert found["verdict"] == "failed"
    assert found["reason"].endswith("(issue 13), but holds; remove it from expected_failures")


def test_a_generator_that_is_not_seen_is_reported_or_named_by_the_subject(tmp_path: Path) -> None:
    parts = ("parts:crops", "parts:NAMED", "--as", "loader", "-t", "augments", "-t", "pads")
    done = run(
        written(tmp_path, parts=OWN_GENERATOR),
        *("ddp_conformance", *parts, "-w", "2", "--check", "SMP-07", "--report", "report.json"),
    )
    found = done.verdict("SMP-07", "crops")
    shown = "global generators only: it has no drawn="
    assert (found["verdict"], found["reason"]) == ("passed", shown)
    named = done.verdict("SMP-07", "named")
    assert named["verdict"] == "failed"
    assert "named draws 0.637, 0.04097, 0.2698 for rank 0 in epoch 0 as for" in named["witness"][0]
    assert any(
        line.startswith("  SMP-07") and line.endswith(shown) for line in done.text.split("\n")
    )


def test_a_missing_gpu_is_a_skip_where_it_is_declared(tmp_path: Path) -> None:
    done = run(
        written(tmp_path, parts=PARTS),
        *("ddp_conformance", "parts:strided", "--as", "sampler", "--trait", "gpu", "-w", "64"),
        *("--check", "SMP-01", "--report", "report.json"),
    )
    assert done.code == 0, done.text
    found = done.verdict("SMP-01", "strided", 64)
    assert found["verdict"] == "skipped"
    assert found["reason"].startswith("NCCL needs a GPU for each rank: 64 needed")


def test_the_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    text = capsys.readouterr().out
    for name in known_ids():
        assert name in text
    assert "SMP-03   MUST   sampler, loader; needs evaluates" in text
    assert re.search("^  pads +repeats less than one sample, or one batch", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 100


# ---------------------------------------------------------------- pytest's plugins

PLUGINS = {
    "fragile": "raise RuntimeError('not with this torch')",
    "rude": "def pytest_collection_finish(session): raise RuntimeError('no time')",
    "loud": "def pytest_sessionfinish(session): print('loud was here')",
}


@pytest.mark.parametrize(
    ("plugin", "code", "text"),
    [
        ("loud", 0, "loud was here"),
        ("fragile", 3, "the checks could not be run: "),
        ("rude", 3, "the checks could not be run: pytest ended with INTERNAL_ERROR"),
        ("absent", 3, "the checks could not be run: "),
    ],
)
def test_a_plugin_is_loaded_if_it_is_asked_for(
    plugin: str, code: int, text: str, tmp_path: Path
) -> None:
    asked = ("ddp_conformance", "parts:strided", "--as", "sampler", "-t", "uneven", "-k", "SMP-01")
    done = run(written(tmp_path, parts=PARTS, **PLUGINS), *asked, "-w", "1", "--plugin", plugin)
    assert done.code == code, done.text
    assert text in done.text


def test_what_is_set_for_other_tests_does_not_matter(tmp_path: Path) -> None:
    """All at once: each would do harm whatever the others are."""
    setting = {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": "fragile",
        "PYTEST_ADDOPTS": "--no-such-option",
    }
    asked = ("ddp_conformance", "parts:strided", "--as", "sampler", "-t", "uneven", "-k", "SMP-01")
    done = run(written(tmp_path, parts=PARTS, **PLUGINS), *asked, "-w", "1", **setting)
    assert done.code == 0, done.text


# ---------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to check; give MODULE:NAME"),
        (["parts", "--as", "sampler"], "error: parts: write it as module:name"),
        (["absent:x", "--as", "sampler"], "absent cannot be imported (ModuleNotFoundError"),
        (["parts:stridded", "--as", "sampler"], "parts has no 'stridded'; did you mean 'strided'?"),
        (["parts:FROZEN", "--as", "loader"], "parts:FROZEN is of kind sampler; leave --as out"),
        (
            ["parts:no_epoch", "--as", "sampler", "-t", "pad"],
            "unknown trait 'pad'; did you mean 'pads'",
        ),
        (["parts:strided", "--as", "sampler", "--check", "SMP-1"], "did you mean SMP-01?"),
        (
            ["parts:strided", "--as", "sampler", "--check", "MET-01"],
            "does not apply to these subjects",
        ),
        (
            ["parts:strided", "--as", "sampler", "--expect", "SMP-01"],
            "--expect SMP-01: give a reason",
        ),
        (
            ["parts:strided", "--as", "sampler", "--expect", "SMP-99=x"],
            "there is no guarantee 'SMP-99'",
        ),
        (
            ["parts:strided", "--as", "sampler", "--expect", "SMP-04=x"],
            "SMP-04 applies to none of the",
        ),
        (
            ["parts:strided", "--as", "sampler", "-w", "0"],
            "'0' is no number of ranks; give 1 to 64",
        ),
        (["parts:strided", "--as", "sampler", "--timeout", "no"], "'no' is no time; give seconds"),
        (
            ["parts:strided", "--as", "sampler", "--report", "no/r.json"],
            "'no/r.json' cannot be written",
        ),
        (
            ["parts:strided", "--as", "sampler", "--nemesis-seed", "-1"],
            "'-1' is no number; give 0 or",
        ),
        (
            ["parts:strided"],
            "parts:strided: of which kind is the part that it makes? Write --as KIND",
        ),
        (["parts:strided", "--as", "smapler"], "argument --as: invalid choice: 'smapler'"),
        (["-w", "2", "parts:strided"], "write MODULE:NAME before --world-size"),
        (["parts:FROZEN", "parts:strided", "--suggest"], "--suggest takes one MODULE:NAME"),
        (["--smapler", "parts:strided"], "unrecognized arguments: --smapler"),
        (["parts:absent", "--as", "training"], "parts has no 'absent'"),
        (["parts:FROZEN", "--as", "training"], "parts:FROZEN is of kind sampler; leave --as out"),
        (["odd_parts:NUMBER", "--as", "training"], "run must be the function that trains"),
        (["odd_parts:NUMBER", "--as", "metric"], "make must be a function that takes a Case"),
        (["odd_parts:NAMELESS", "--as", "trainstep"], "has no readable name; move the factory to"),
        (["odd_parts:UNREADABLE", "--as", "datamodule"], "it cannot be used: LookupError: no repr"),
        (["odd_parts:lazy", "--as", "loader"], "does not give 'lazy' (LookupError: not today"),
        (
            ["quits:train", "--as", "training"],
            "quits exits when it is imported; move what it runs below",
        ),
        (["broken:make", "--as", "loader"], "broken cannot be imported (SyntaxError: "),
        (["..parts:strided", "--as", "loader"], "..parts cannot be imported (TypeError: "),
    ],
)
def test_misuse_ends_in_2_and_names_the_fix(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(written(tmp_path, parts=PARTS, odd_parts=ODD_PARTS, **ODD_MODULES))
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in ("parts", "odd_parts"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") <= 1 + 3
    for module in ("parts", "odd_parts"):
        monkeypatch.delitem(sys.modules, module, raising=False)


def test_what_is_written_in_c_is_a_program_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert subject_at("training", "os:getpid", ()).name == "getpid"


def test_factories_of_one_name_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(written(tmp_path, some=PARTS, others=PARTS)))
    asked = [("sampler", "some:strided"), ("sampler", "others:strided"), ("sampler", "some:FROZEN")]
    request = Request((*asked, asked[0]), (), ("SMP-01",), (), (2,))
    names = [subject.name for (subject, _), _ in cells_of(request)]
    assert names == ["sampler some:strided", "sampler others:strided", "frozen"]


def test_a_request_survives_its_way() -> None:
    request = Request((("loader", "a:b"),), ("pads",), ("SMP-01",), (("SMP-04", "é"),), (1, 2))
    assert Request.from_json(request.to_json()) == request


def test_every_kind_has_an_option() -> None:
    assert {"sampler", "loader", "datamodule", "metric", "writer"} <= set(all_kinds())
