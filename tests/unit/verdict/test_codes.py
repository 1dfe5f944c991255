"""The code of each kind of failure: which one, where it stands, and what explains it."""

from __future__ import annotations

import re
import signal
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddp import extending
from pytest_ddp.__main__ import main
from pytest_ddp.outcome.outcome import (
    Ending,
    Expiry,
    Finding,
    Hang,
    HangKind,
    RankLine,
    RankOutcome,
)
from pytest_ddp.protocol.messages import CODE, EXIT_LINK_LOST
from pytest_ddp.settings.options import Output
from pytest_ddp.verdict import codes
from pytest_ddp.verdict.codes import by_code
from pytest_ddp.verdict.diagnosis import Kind
from pytest_ddp.verdict.merge import judge
from tests.unit import handmade as made
from tests.unit.handmade import ASSERTED, CRASHED, dead, stopped

ENTRIES = [*by_code().values()]
ENDED = Hang(
    HangKind.FOR_ENDED,
    what="rank 0 waits in barrier #1 of the default group, rank 1 has ended the test without it",
    culprits=(1,),
    table=(RankLine(0, "waits", ("call",), "barrier #1", None), RankLine(1, "ended", (), "", None)),
    hint="rank 1 issued no collective: why?",
)
CIRCLE = replace(ENDED, kind=HangKind.FOR_EACH_OTHER)
UNLIKE = replace(ENDED, kind=HangKind.MISMATCH)
IN_NEW_GROUP = Expiry(
    (),
    (
        RankLine(
            0, "waits", ("call", "new_group"), "new_group #1 (all)", None, operation="new_group"
        ),
    ),
)
KILLED = dead(returncode=-signal.SIGKILL)
FINDING = Finding("ranks noted unlike things", "DDP-999")
EXCEPTION = "raise RuntimeError({!r})"


def raised(text: str, code: str = "") -> RankOutcome:
    own: dict[str, Any] = {CODE: code} if code else {}
    return made.passing(1, made.failed(EXCEPTION.format(text), **own))


def gloo_aborted(why: str) -> RankOutcome:
    text = f"EnforceNotMet [enforce fail at pair.cc:456] {why}"
    return made.rank(1, ending=Ending.EXITED, returncode=-6, stderr=text)


CASES: list[tuple[str, tuple[RankOutcome, ...], dict[str, Any]]] = [
    (codes.WAITS_FOR_ENDED, (stopped(0), made.passing(1)), {"hang": ENDED}),
    (codes.WAITS_FOR_EACH_OTHER, (stopped(0), stopped(1)), {"hang": CIRCLE}),
    (codes.MISMATCH, (stopped(0), stopped(1)), {"hang": UNLIKE}),
    (codes.TIMEOUT, (stopped(0), made.passing(1)), {"timeout": 5.0}),
    (codes.NEW_GROUP, (stopped(0), stopped(1)), {"timeout": 5.0, "expiry": IN_NEW_GROUP}),
    (codes.DISAGREE, (made.passing(0), made.passing(1, made.skipped("no"))), {}),
    (codes.SIGNAL, (made.passing(0), dead(stacks=CRASHED)), {}),
    (codes.KILLED, (made.passing(0), KILLED), {}),
    (codes.OUT_OF_MEMORY, (made.passing(0), KILLED), {"oom": "killed a process"}),
    (codes.EXITED, (made.passing(0), dead(returncode=0)), {}),
    (codes.CHANNEL_LOST, (made.passing(0), dead(returncode=EXIT_LINK_LOST)), {}),
    (codes.GLOO_ABORTED, (made.passing(0), gloo_aborted("op.nbytes. 6 vs 4. It")), {}),
    (codes.STOPPED, (stopped(0), made.passing(1)), {}),
    (codes.PEER_LOST, (made.passing(0), raised("Connection closed by peer [::1]:7")), {}),
    (
        codes.NOT_BEGUN,
        (made.passing(0), made.rank(1, ending=Ending.NOT_BEGUN, problem="no group")),
        {},
    ),
    (
        codes.UNEQUAL_NUMBER,
        tuple(made.passing(n, counts=made.default_group(1 + n, 0, 1)) for n in range(2)),
        {},
    ),
    (
        codes.UNLIKE,
        (made.passing(0), made.passing(1)),
        {"mismatch": "the ranks differ in collective #1 of the default group:"},
    ),
    (
        codes.UNLIKE_MESSAGES,
        (made.passing(0), made.passing(1)),
        {"unlike_message": "the ranks differ in message #1 from rank 0 to rank 1 of the default:"},
    ),
    (FINDING.code, (made.passing(0), made.passing(1)), {"findings": ((FINDING,),)}),
    ("", (made.passing(0), made.passing(1)), {"findings": (("not as this plugin wants it",),)}),
    ("DDP-040", (made.passing(0), raised("Distributed package doesn't have NCCL built in")), {}),
    ("DDP-050", (made.passing(0), raised("the ranks differ at x", "DDP-050")), {}),
    ("DDP-051", (made.passing(0), raised("ranks 0 and 1 are at unlike calls", "DDP-051")), {}),
    ("", (made.passing(0), made.passing(1, ASSERTED)), {}),
    ("", (made.passing(0), raised("label 17 is out of range")), {}),
]


@pytest.mark.parametrize(("code", "ranks", "known"), CASES, ids=[case[0] for case in CASES])
def test_each_kind_has_its_code_at_the_end_of_its_text(
    code: str, ranks: tuple[RankOutcome, ...], known: dict[str, Any]
) -> None:
    merged = judge(made.run(*ranks, **known), Output.FAILED)
    assert merged.diagnoses[0].code == code
    (report, *_) = (report for report in merged.reports if report.failed)
    last = str(report.longrepr).rstrip().splitlines()[-1]
    assert (last == f"{code}: python -m pytest_ddp explain {code}") is bool(code)


def test_every_kind_but_an_exception_has_a_code() -> None:
    kinds = {judge(made.run(*ranks, **known), Output.FAILED).diagnoses[0].kind
             for code, ranks, known in CASES if code}  # fmt: skip
    assert kinds == {*Kind}


def test_an_assertion_on_such_a_message_is_a_failure_of_its_own() -> None:
    text = "assert 'address already in use' in str(x)"
    found = judge(made.run(made.passing(0), made.passing(1, made.failed(text))), Output.FAILED)
    assert found.diagnoses[0].code == ""


def test_with_an_address_the_text_has_that_of_the_code() -> None:
    outcome = made.run(stopped(0), made.passing(1), hang=ENDED, docs_url="https://a.example/")
    (report,) = (r for r in judge(outcome, Output.FAILED).reports if r.when == "call")
    assert (
        str(report.longrepr)
        .rstrip()
        .endswith(f"{ENDED.hint}\nDDP-001: https://a.example/troubleshooting.html#ddp-001")
    )


def test_gloos_message_has_how_many_bytes_did_not_fit() -> None:
    text = made.text(made.passing(0), gloo_aborted("op.preamble.length <= op.nbytes. 6 vs 4. It"))
    assert "(6 bytes came in place of 4)" in " ".join(text.split())


# ------------------------------------------------------------------ the table


def test_codes_are_in_order_and_each_stands_once() -> None:
    of_extensions = [extending.load(name, "codes").ENTRIES for name in extending.names("codes")]
    codes_of_all = [entry.code for each in (codes.ENTRIES, *of_extensions) for entry in each]
    assert [*by_code()] == sorted(codes_of_all)
    assert all(re.fullmatch(r"DDP-\d{3}", code) for code in codes_of_all)
    assert all(e.title and e.texts and e.meaning and e.causes and e.fixes for e in ENTRIES)


def test_a_message_finds_the_entry_that_shows_it() -> None:
    for entry in ENTRIES:
        for text in entry.texts if entry.message else ():
            assert codes.of_message(text) in ("", entry.code), text
        if entry.message:
            assert entry.code in map(codes.of_message, entry.texts)


# ------------------------------------------------------------------ the command


def test_a_code_is_explained_however_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    pages = []
    for written in ("DDP-012", "ddp-012", "ddp12", "12"):
        assert main(["explain", written]) == 0
        pages.append(capsys.readouterr().out)
    assert len({*pages}) == 1
    entry = by_code()["DDP-012"]
    assert pages[0].startswith(f"DDP-012: {entry.title}\n")
    words = " ".join(pages[0].split())
    assert all(part in words for part in (entry.meaning, *entry.causes, *entry.fixes))


def test_without_a_code_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{entry.code}  {entry.title}\n" in listed for entry in ENTRIES)


def test_an_unknown_code_names_its_neighbours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "DDP-014", "DDP-001"]) == 2
    printed = capsys.readouterr()
    assert printed.out.startswith("DDP-001: ")
    assert printed.err.startswith("error: there is no code DDP-014; near it are\n")
    assert "  DDP-012  " in printed.err
    assert printed.err.count("\n") == 6


def test_version_names_what_behaviour_depends_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(
        r"pytest-ddp \d\S* \(Python 3\.\S+, pytest \d\S+, torch \d\S+\)\n", capsys.readouterr().out
    )


def test_a_wrong_command_is_named_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explane"]) == 2
    error = capsys.readouterr().err.splitlines()
    assert error[0] == "error: there is no command explane"
    assert len(error) == 2
    assert "explain" in error[1]
