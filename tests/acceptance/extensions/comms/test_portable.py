"""``portable=``: nothing is found in legal programs, and in broken ones what breaks them."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance.suite import Finished, Suite, flat

HERE = Path(__file__).parent
MODELS = HERE / "example_models.py"
EXAMPLES = (HERE / "portable_examples.py").read_text()


def with_models(suite: Suite) -> Suite:
    suite.write(MODELS.name, MODELS.read_text())
    return suite


@pytest.fixture(scope="module")
def legal(new_suite: Callable[[], Suite]) -> Finished:
    suite = with_models(new_suite())
    suite.write("test_legal.py", EXAMPLES)
    return suite.run("--ddp-timeout=200", timeout=500)


def test_nothing_is_found_in_legal_programs(legal: Finished) -> None:
    red = {
        nodeid: result.text
        for nodeid, result in legal.results.items()
        if result.verdict not in ("passed", "skipped")
    }
    assert not red
    assert len(legal.results) > 40
    assert "NotPortableWarning" not in legal.stdout


# ------------------------------------------------------------------ broken ones


class Broken(NamedTuple):
    """A legal program with one change."""

    name: str
    code: str
    """Of the function."""
    kind: str
    lines: tuple[int, ...]
    """Lines of the function, from 1, of which the finding names one each."""


def _functions() -> Iterator[tuple[str, list[str]]]:
    for node in ast.parse(EXAMPLES).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            first = min(decorator.lineno for decorator in node.decorator_list)
            yield node.name, EXAMPLES.splitlines()[first - 1 : node.end_lineno]


def _broken() -> Iterator[Broken]:
    for name, lines in _functions():
        for place, line in enumerate(lines):
            indent = line[: len(line) - len(line.lstrip())]
            new = f"{name}_{place}"
            before, after = lines[:place], lines[place + 1 :]
            if line.endswith("# dropped"):
                code = "\n".join([*before, f"{indent}pass", *after])
                yield Broken(new, code.replace(name, new), "lost handle", ())
            if line.endswith("# swapped"):
                pair = before.pop().strip(), line.strip()
                swapped = [
                    *(f"{indent}{text}" for text in ("if ddp.rank == 1:", "    " + pair[1])),
                    *(f"{indent}{text}" for text in ("    " + pair[0], "else:", "    " + pair[0])),
                    f"{indent}    {pair[1]}",
                ]
                code = "\n".join([*before, *swapped, *after])
                named = tuple(len(before) + number for number in (2, 3, 5, 6))
                in_a_branch = "if ddp.rank == 0:" in code.partition("# swapped")[0]
                kind = "order between groups"
                yield Broken(
                    new, code.replace(name, new), kind, named[:2] if in_a_branch else named
                )
            if line.startswith("@mixed"):
                code = "\n".join(["@two", *after]).replace(name, new)
                yield Broken(new, code, "order between groups", ())


BROKEN = {broken.name: broken for broken in _broken()}


@pytest.fixture(scope="module")
def broken(new_suite: Callable[[], Suite]) -> tuple[Finished, dict[str, int], Path]:
    suite = with_models(new_suite())
    prelude = EXAMPLES[: EXAMPLES.index("\n# ----")]
    text, first = prelude, {}
    for one in BROKEN.values():
        text += "\n\n"
        first[one.name] = text.count("\n") + 1
        text += f"{one.code}\n"
    suite.write("test_broken.py", text)
    finished = suite.run("--ddp-timeout=200", "--ddp-diagnosis=found", timeout=500)
    return finished, first, finished.directory / "found"


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_program_is_named(
    name: str, broken: tuple[Finished, dict[str, int], Path]
) -> None:
    finished, first, _ = broken
    one, result = BROKEN[name], finished[name]
    assert result.verdict == "failed"
    assert result.text.startswith(f"not portable to nccl: {one.kind}: ")
    end = first[name] + one.code.count("\n")
    named = {n for n in range(first[name], end + 1) if f"test_broken.py:{n}\n" in result.text}
    assert named >= {first[name] + line - 1 for line in one.lines}
    assert named


def test_a_finding_has_a_kind_of_its_own(broken: tuple[Finished, dict[str, int], Path]) -> None:
    records = [json.loads(file.read_text()) for file in broken[2].glob("*.json")]
    assert len(records) == len(BROKEN)
    for record in records:
        (failure,) = record["failures"]
        assert failure["kind"] == "finding"
        assert failure["verdict"].startswith("not portable to nccl: ")
        assert any("test_broken.py:" in note for note in failure["notes"])


# ------------------------------------------------------------------ settings

SETTINGS = """
import pytest, torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

def lose():
    dist.all_reduce(torch.ones(4), async_op=True)
    dist.barrier()

@pytest.mark.ddp(world_size=2)
def test_of_the_session(ddp):
    lose()

@pytest.mark.ddp(world_size=2, portable="off")
def test_off(ddp):
    lose()

@pytest.mark.ddp(world_size=2, portable="cpu:gloo,cuda:nccl")
def test_mixed(ddp):
    lose()

@pytest.mark.ddp(world_size=2)
@pytest.mark.filterwarnings("error")
def test_strict(ddp):
    lose()

@pytest.mark.ddp(world_size=2)
def test_unread(ddp):
    functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)

@pytest.mark.ddp(world_size=2)
def test_that_fails(ddp):
    lose()
    assert not ddp.rank, "its own text"
"""


def test_warnings_by_the_ini_file(suite: Suite) -> None:
    suite.write("test_settings.py", SETTINGS)
    finished = suite.run("-o", "ddp_portable=nccl", "-o", "ddp_portable_findings=warn")
    verdicts = [result.verdict for result in finished.results.values()]
    assert verdicts == ["passed", "passed", "passed", "failed", "passed", "failed"]
    assert finished["test_strict"].text.startswith("not portable to nccl: lost handle: ")
    assert "its own text" in finished["test_that_fails"].text
    said = flat(finished.stdout)
    assert "NotPortableWarning: not portable to nccl: lost handle: nothing waited for" in said
    assert "NotPortableWarning: not portable to cpu:gloo,cuda:nccl: lost handle" in said
    assert "unread result: nothing read 1 result of functional collectives (ranks 0-1)" in said
    assert said.count("NotPortableWarning") == 4  # the test that fails has one beside its failure


EXPECTED = """
import pytest, torch
import torch.distributed as dist

pytestmark = [
    pytest.mark.ddp(world_size=2, portable="nccl"), pytest.mark.filterwarnings("error")
]

@pytest.mark.xfail(strict=True)
def test_expected(ddp):
    dist.all_reduce(torch.ones(4), async_op=True)
    dist.barrier()

@pytest.mark.xfail(strict=True, raises=ValueError)
def test_other(ddp):
    dist.all_reduce(torch.ones(4), async_op=True)
    dist.barrier()
"""


@pytest.mark.parametrize("severity", ["fail", "warn"])
def test_a_finding_may_be_expected(suite: Suite, severity: str) -> None:
    suite.write("test_expected.py", EXPECTED)
    finished = suite.run("-o", f"ddp_portable_findings={severity}")
    finished.assert_outcomes(xfailed=1, failed=1)
    text = finished["test_other"].text
    assert text.startswith("not portable to nccl: lost handle: ")
    assert text.rstrip().endswith("DDP-061: python -m pytest_ddp explain DDP-061")


@pytest.mark.parametrize("value", ["gloo", "ncl", 3, "cpu:nccl,cuda:gloo"])
def test_a_wrong_value_is_an_error_of_the_collection(suite: Suite, value: object) -> None:
    suite.write(
        "test_wrong.py",
        f"import pytest\n@pytest.mark.ddp(world_size=2, portable={value!r})\ndef test_x(): ...",
    )
    said = flat(suite.run().stdout)
    assert f"@pytest.mark.ddp(portable={value!r}): it is the backend of production" in said
    assert "test_wrong.py::test_x" in said


def test_a_wrong_option(suite: Suite) -> None:
    suite.write("test_settings.py", SETTINGS)
    finished = suite.run("--ddp-portable=gloo")
    assert "--ddp-portable=gloo: it is the backend of production" in flat(finished.stderr)


def test_a_hang_names_the_handle_that_was_dropped(suite: Suite) -> None:
    suite.write(
        "test_hang.py",
        """
        import pytest, torch
        import torch.distributed as dist

        @pytest.mark.ddp(world_size=2, timeout=15)
        def test_dropped(ddp):
            if ddp.rank == 0:
                dist.isend(torch.ones(4), 1)
                dist.barrier()
            else:
                dist.barrier()
                dist.recv(torch.ones(4), 0)
        """,
    )
    text = flat(suite.run()["test_dropped"].text)
    assert "rank 0 dropped the handle of a send to rank 1 at test_hang.py:8 before" in text
