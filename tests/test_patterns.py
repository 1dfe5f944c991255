"""Facts are records until the last writer: the plugin reads no text that it has written itself.

Each regular expression and each test of a text for words stands here with the source of the text
that it reads. Where the source is the plugin, a record has to carry the fact instead.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "pytest_ddp"

_SOURCES: dict[str, dict[str, str]] = {
    "extensions/adopt/spawn_server.py": {
        "names of environment variables": "_READ_AT_IMPORT",
    },
    "extensions/comms/snapshot.py": {
        "the user's snapshot file": "_REPEATED _WHAT _torch _unfolded",
        "names of the user's modules": "_module",
    },
    "extensions/comms/snapshot_files.py": {
        "pytest's names of tests": "_file_name",
        "names of the user's files": "without_test",
    },
    "extensions/doctor/report.py": {
        "codes of terminals": "_STYLE",
    },
    "extensions/doctor/selftest/inner_session.py": {
        "names of environment variables": "_NOT_INHERITED",
    },
    "extensions/doctor/trial.py": {
        "what pytest prints": "_failure",
    },
    "extensions/explore/ranks/paths.py": {
        "paths of files": "_OWN _RANDOM",
    },
    "extensions/explore/schedule.py": {
        "the user's option": "_HOLD",
    },
    "extensions/machines/engines/scaler.py": {
        "what Ray's autoscaler prints": "coming",
    },
    "extensions/machines/engines/sending.py": {
        "names of environment variables": "_ITS_OWN",
    },
    "extensions/machines/engines/slurm.py": {
        "names of environment variables": "_OF_THE_JOB",
        "what scontrol prints": "_address",
    },
    "extensions/machines/engines/ssh.py": {
        "what ssh prints": "_real_name",
    },
    "extensions/migrate/routes.py": {
        "the user's code": "_FORKS _LAUNCHES _METHOD _STRATEGY",
    },
    "extensions/summary/markdown.py": {
        "any text, which it quotes": "_inline",
    },
    "extensions/summary/results.py": {
        "pytest's names of tests": "_address",
        "what pytest prints": "_error_of",
    },
    "extensions/summary/session_report.py": {
        "pytest's reasons of skips": "_reason",
    },
    "extensions/summary/terminal_html.py": {
        "codes of terminals": "_CONTROL _SEQUENCE",
    },
    "extensions/worlds/plans.py": {
        "the user's names of worlds": "_name",
        "pytest's reasons of skips": "_take_reference",
    },
    "launch/gpu_vendors.py": {
        "files of the kernel": "_read",
    },
    "launch/gpus.py": {
        "names of devices": "__init__",
        "the user's CUDA_VISIBLE_DEVICES": "_find",
        "files of the driver": "_from_driver",
        "what nvidia-smi prints": "parse_smi",
    },
    "launch/rank_process.py": {
        "what faulthandler writes": "has_fatal_stack",
    },
    "launch/streams.py": {
        "the user's output": "_LINE_END",
    },
    "outcome/stack_dumps.py": {
        "what torch's signal handler writes": "_ANY_FRAME _HEADER _NATIVE_FRAME _OTHER",
        "Python's tracebacks": "_CALL_OF_TRACEBACK last_exception raised_at",
        "what faulthandler writes": "_FRAME _THREAD _TITLE signal",
        "names of C++ functions": "_OPERATOR _without_arguments culprit",
        "paths of files": "_PACKAGES",
        "names of libraries": "_SYSTEM",
    },
    "rank/cleanup/cleanup.py": {
        "names of threads": "_counts",
    },
    "rank/cleanup/leftovers.py": {
        "command lines of processes": "_set_trackers_apart",
    },
    "rank/equality.py": {
        "Python's texts of objects": "_text",
    },
    "rank/forking.py": {
        "command lines of processes": "_end_all",
    },
    "session/synthetic_reports.py": {
        "pytest's texts of exceptions": "_EXCEPTION _like",
        "a kind of failure, of which it makes a name": "_OWN_KINDS",
    },
    "session/tmp_path.py": {
        "pytest's names of tests": "name",
    },
    "settings/marked_items.py": {
        "the text of an error, whose lines it joins": "_errors",
    },
    "settings/prescan.py": {
        "the user's file": "looks_marked",
    },
    "settings/rules.py": {
        "the user's option": "_BACKEND check_url_or_empty",
    },
    "trace/files.py": {
        "pytest's names of tests": "stem_of",
    },
    "trace/picture.py": {
        "a picture, of which it leaves out a part": "embedded",
    },
    "verdict/codes.py": {
        "exceptions of torch and Python": "of_message",
        "finished reports of the plugin": "pointed_code",
    },
    "verdict/diagnosis.py": {
        "pytest's texts of exceptions": "_code_of_exception",
    },
    "verdict/diagnosis_files.py": {
        "pytest's names of tests": "path_of",
    },
    "verdict/lost_ranks.py": {
        "what gloo prints": "_CLOSED _SIZES _UNLIKE _checks_of_gloo",
        "what NCCL's watchdog prints": "_WATCHDOG",
        "exceptions of torch and Python": "children",
    },
    "verdict/merge.py": {
        "pytest's titles of output": "_phase_number",
        "pytest's reasons of skips": "reason",
    },
    "verdict/rank_failure.py": {
        "exceptions of torch and Python": "_BROKEN_CONNECTION _OUT_OF_MEMORY _PREFIX _plain "
        "child_crash is_out_of_memory",
        "the user's texts of exceptions": "_SAYS_RANK _VARIES _WHOLE_NUMBER",
        "pytest's texts of exceptions": "_is_of_a_lost_peer _raised",
    },
    "verdict/representation.py": {
        "what pytest prints": "brief",
    },
}
"""The source of each file's texts, and the constants or functions that read such texts."""

_PATTERNS = frozenset(
    {"compile", "match", "search", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
)
_TESTS = frozenset(
    {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split"}
    | {"rsplit", "find", "rfind", "index", "rindex", "count", "replace"}
)


def _readers(trees: Mapping[str, ast.Module]) -> Iterator[tuple[str, str]]:
    """Each file and scope with a pattern, or with a test of a text for words."""
    texts: dict[str, list[str]] = {}
    for tree in trees.values():
        for statement in tree.body:
            if isinstance(statement, ast.Assign) and not isinstance(statement.value, ast.Dict):
                for target in statement.targets:
                    texts.setdefault(ast.unparse(target), []).extend(_texts(statement.value, {}))
    for file, tree in trees.items():
        for scope, node in _scoped(tree):
            if _is_pattern(node) or any(" " in text for text in _tested(node, texts)):
                yield file, scope


def _scoped(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """All nodes, with the name of the function, method or constant of the module around them."""
    for statement in tree.body:
        inner = statement.body if isinstance(statement, ast.ClassDef) else [statement]
        for each in inner:
            name = getattr(each, "name", "")
            if isinstance(each, ast.Assign | ast.AnnAssign):
                target = each.target if isinstance(each, ast.AnnAssign) else each.targets[0]
                name = ast.unparse(target)
            yield from ((name, node) for node in ast.walk(each))


def _is_pattern(node: ast.AST) -> bool:
    """Whether it is a use of :mod:`re`, by whatever name a pattern has afterwards."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "re"
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "re"
        and node.attr in _PATTERNS
    )


def _tested(node: ast.AST, texts: Mapping[str, list[str]]) -> list[str]:
    """The words that a text is tested for, with those of constants of any module."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _texts(node.args[0], texts) if node.func.attr in _TESTS and node.args else []
    words = ast.Constant | ast.JoinedStr | ast.Name | ast.Attribute
    if isinstance(node, ast.Compare) and isinstance(node.left, words):
        return _texts(node.left, texts) if isinstance(node.ops[0], ast.In | ast.NotIn) else []
    return []


def _texts(node: ast.AST, known: Mapping[str, list[str]]) -> list[str]:
    found = []
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            found.append(part.value)
        elif isinstance(part, ast.Name | ast.Attribute):
            found += known.get(part.id if isinstance(part, ast.Name) else part.attr, [])
    return found


def _trees() -> dict[str, ast.Module]:
    files = sorted(ROOT.rglob("*.py"))
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in files}


def _unlisted(found: set[tuple[str, str]]) -> list[str]:
    listed = {
        (file, scope)
        for file, sources in _SOURCES.items()
        for scopes in sources.values()
        for scope in scopes.split()
    }
    new = [f"{file}: {scope} reads a text: of whom?" for file, scope in found - listed]
    return sorted(new + [f"{file}: {scope} reads none" for file, scope in listed - found])


def test_only_one_function_reads_the_plugins_own_texts() -> None:
    assert not _unlisted({*_readers(_trees())})


@pytest.mark.parametrize(
    "planted",
    [
        "def planted(hang):\n    return re.match('mismatch', hang.sentence)",
        "def planted(hang):\n    return hang.sentence.startswith('mismatch: rank')",
        "def planted(hang):\n    return ' has ended the test ' in hang.sentence",
        "def planted(hang):\n    return hang.sentence.startswith(WORDS)",
        "def planted(hang):\n    return map(re.compile, hang.patterns)",
        "from re import match as planted",
    ],
)
def test_a_planted_one_is_found(planted: str) -> None:
    tree = ast.parse(f"WORDS = 'has ended', 'the test'\n{planted}")
    found = {*_readers({"planted.py": tree})}
    assert len(found) == 1
    assert any(line.startswith("planted.py: ") for line in _unlisted(found))
