"""Paths of node 0's rootdir and of its copy, told for each other."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from pytest_ddp.agent.places import Places
from pytest_ddp.machines.line import Frame, Kind
from pytest_ddp.machines.shipping import Told
from pytest_ddp.wire import marker

HOME, REAL, THERE = "/home/ü/proj", "/data/proj", "/tmp/pddp-ab_1/shipped/tree/proj"
PLACES = Places(Told(HOME, REAL, "", [f"{HOME}/.venv"], [], [], {}), THERE)


@pytest.mark.parametrize(
    ("home", "there"),
    [
        (HOME, THERE),
        (f"{HOME}/tests/test_a.py", f"{THERE}/tests/test_a.py"),
        (f"{REAL}/tests", f"{THERE}/tests"),
        (f"a:{HOME}/src:{HOME}:b", f"a:{THERE}/src:{THERE}:b"),
        (f"--rootdir={HOME}", f"--rootdir={THERE}"),
        (f"-c{HOME}/pytest.ini", f"-c{THERE}/pytest.ini"),
        (f"-v -c{HOME}/pytest.ini", f"-v -c{THERE}/pytest.ini"),
        (f"{HOME}/test_a.py::test_x[1-{HOME}/a]", f"{THERE}/test_a.py::test_x[1-{THERE}/a]"),
    ],
)
def test_paths_of_the_rootdir(home: str, there: str) -> None:
    assert PLACES.here(home) == there
    assert PLACES.home(there) == home.replace(REAL, HOME)


@pytest.mark.parametrize(
    "text",
    [
        f"{HOME}-2/x",
        f"{HOME}ection",
        f"{HOME}.old/x",
        f"/mnt{HOME}/x",
        f"{HOME}/.venv/bin/python",
        f"PATH={HOME}/.venv:x",
        "tests/test_a.py",
        "",
    ],
)
def test_what_only_looks_like_it(text: str) -> None:
    assert PLACES.here(text) == text


def test_another_environment_with_a_longer_name_is_of_the_rootdir() -> None:
    assert PLACES.here(f"{HOME}/.venv2/x") == f"{THERE}/.venv2/x"


def frame(kind: Kind, body: Any, part: int = 0) -> Frame:
    data = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    return Frame(kind, 3, part, data)


def home(body: Any) -> Any:
    return json.loads(PLACES.outward(frame(Kind.MESSAGE, body)).data)


def here(body: Any) -> Any:
    return json.loads(PLACES.inward(frame(Kind.MESSAGE, body)).data)


def test_a_session_is_told_with_the_copy_and_its_rootdir() -> None:
    config = base64.b64encode(json.dumps({"source": [f"{HOME}/src"]}).encode()).decode()
    told = here(
        {"kind": "Session", "args": ["-q", f"{HOME}/tests"], "measured": {"config": config}}
    )
    assert told["args"] == [f"--rootdir={THERE}", "-q", f"{THERE}/tests"]
    assert json.loads(base64.b64decode(told["measured"]["config"])) == {"source": [f"{THERE}/src"]}


def test_what_ranks_exchange_is_told_as_it_is() -> None:
    reply = {"kind": "ExchangeReply", "payloads": [HOME]}
    assert here(reply) == reply
    said = {"kind": "Exchange", "payload": THERE}
    assert home(said) == said


def test_digests_are_of_the_copy_s_files() -> None:
    told = PLACES.inward(frame(Kind.FILES, {f"{HOME}/a.py": "1", "/x/a.py": "2"}))
    assert json.loads(told.data) == {f"{THERE}/a.py": "1", "/x/a.py": "2"}


def test_a_report_has_node_0_s_paths_and_its_test_s_own_words() -> None:
    message = f"assert '{THERE}/a' == '{HOME}/a'"
    report = {
        "nodeid": f"test_a.py::test_x[{THERE}/a]",
        "keywords": {f"test_x[{THERE}/a]": 1},
        "sections": [["Captured stdout call", f"{THERE}/a\n"]],
        "longrepr": {
            "reprcrash": {"path": f"{THERE}/test_a.py", "message": message},
            "lines": [f"E  {message}", f'  File "{THERE}/test_a.py", line 3, in x\n'],
        },
    }
    assert home({"kind": "PhaseReported", "report": report})["report"] == {
        "nodeid": f"test_a.py::test_x[{HOME}/a]",
        "keywords": {f"test_x[{HOME}/a]": 1},
        "sections": [["Captured stdout call", f"{THERE}/a\n"]],
        "longrepr": {
            "reprcrash": {"path": f"{HOME}/test_a.py", "message": message},
            "lines": [f"E  {message}", f'  File "{HOME}/test_a.py", line 3, in x\n'],
        },
    }


def test_stacks_and_traces_have_node_0_s_paths() -> None:
    stack = f'Current thread:\n  File "{THERE}/a.py", line 3 in x\n'.encode()
    told = PLACES.outward(frame(Kind.FILE, stack, 0)).data
    # As node 0's own faulthandler writes it.
    assert told.decode() == 'Current thread:\n  File "/home/\\xfc/proj/a.py", line 3 in x\n'
    line = frame(Kind.FILE, ["phase", 1, f"{THERE}/a.py:3"], 3)
    assert json.loads(PLACES.outward(line).data) == ["phase", 1, f"{HOME}/a.py:3"]


def test_captured_output_and_streams_stay_as_they_are() -> None:
    written = f'"{THERE}/a.py"'.encode()
    for kind, part in ((Kind.FILE, 4), (Kind.STREAM, 0)):
        assert PLACES.outward(frame(kind, written, part)).data == written


def test_a_page_has_node_0_s_paths(tmp_path: Any) -> None:
    file = tmp_path / "page"
    page = marker.Page(str(file))
    note = marker.note_of("call", f"{THERE}/a.py:3 in x", 7)
    page.write(marker.PHASE, note)
    page.write(marker.SEEN, marker.sight_of("call: y", f"{THERE}/b.py:4 in y", note))
    page.write(marker.KEPT, marker.framed("7", "setup 1 2 3"))
    before = marker.read(file)
    file.write_bytes(PLACES.outward(frame(Kind.FILE, file.read_bytes(), 2)).data)
    after = marker.read(file)
    assert (before.phase, before.seen) == ("call: y", f"{THERE}/b.py:4 in y")
    assert (after.phase, after.seen) == ("call: y", f"{HOME}/b.py:4 in y")
    assert marker.lines(file, marker.KEPT) == ["7", "setup 1 2 3"]


def test_what_is_no_page_stays_as_it_is() -> None:
    assert PLACES.outward(frame(Kind.FILE, b"garbage", 2)).data == b"garbage"
