"""Every name says what it is: a parameter or an attribute shares a word with its class."""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pytest_ddp"

_WHICH = (
    "a after answers b before begun came chosen counted current cut_off dead done earlier "
    "ended expected far first found further held here issued joined known last late leaving "
    "left listening look looks lost made measured mine now of one open other others "
    "outside own peers plain reach recorded retired second sent started stopped stuck "
    "theirs to together total two unawaited unfinished unsent used waiting wanted wide "
    "wrong"
)
"""Names that say which of several objects of a class it is, next to the class in the annotation."""

_ROLES = {
    "an empty value, which has the name of what is missing": (
        "NOTHING:Balance _NOTHING:_ThreadOperation _NO_GROUP:World"
    ),
    "a setting, by its option": (
        "EVERYWHERE:Setting REPORT:Setting _ADOPT:Setting _EXITS:Setting _FINDINGS:Setting "
        "_PORTABLE:Setting _EXPLORE:Setting _SCHEDULE:Setting"
    ),
    "a key or table, by what it is for": (
        "_PLACE:TorchrunEnvironment _READERS:Transfer _lazy_init:TransparentWrapper"
    ),
    "a message of the protocol, whatever its class is": (
        "message:* messages:* _briefing:* _orders:* kind:Message"
    ),
    "the word of people for a call or a wait of their code": (
        "_call:Operation call:* calls:* wait:* waits:* _exchanges:Operation"
    ),
    "a row, a table or a picture of them": (
        "row:* rows:* table:* lanes:Box entries:HeldValue _entries:Operation"
    ),
    "the failure of a rank, beside that of the phase": (
        "trouble:RankFailure troubles:RankFailure roots:RankFailure echoes:RankFailure "
        "group:RankFailure groups:RankFailure"
    ),
    "one end of a message": ("receive:_End receives:_End send:_End sends:_End"),
    "an exception": ("error:Handled error:Raised"),
    "what a rank has issued, in order": ("ranks:Step threads:Events threads:Step"),
    "the user's code that is looked at": (
        "cls:Class home:Module test:Function item:ScannedImport _places:Module"
    ),
    "a collection, by what it is to its owner": (
        "_claims:PendingLease _pools:* by_rank:PortabilityFinding members:GroupCount "
        "phases:Passed provisions:Needs rank_doubt:Leak stages:Comparison "
        "subtests:TimedReport forms:Operation _ranks:Streams _processes:Watched "
        "findings:CheckResult parts:RankPhase company:LiveResources lines:_Use "
        "_by_ident:ThreadEvents names:Event _takes:Operation"
    ),
    "what an access is to a conflict": "use:Access other_use:Access",
    "a place of a hold, by the hold": "_sites:Hold sites:Hold",
    "the line of a call, or the line at which a rank is": (
        "site:CodeLine _site:CodeLine place:CodeLine seen:CodeLine seen_at:CodeLine "
        "began_at:CodeLine"
    ),
    "a role": (
        "_holder:RankProcess _side:* _terminal:_Descriptors about:SpawnedRanks "
        "coordinator:Channel distance:Deviation module:Multiprocessing "
        "stand_in:Multiprocessing part:SelftestCase span:* stand:FinalState state:ProbedRank "
        "what:TraceLine orders:RunRequests failed:RunResult givers:Spot _seen:_ThreadLook "
        "turned:Conflict _stated:Wait"
    ),
}
"""Other reasons, with names and their classes; a star stands for any class."""


def _trees() -> dict[str, ast.Module]:
    files = sorted(PACKAGE.rglob("*.py"))
    return {str(file.relative_to(PACKAGE)): ast.parse(file.read_text()) for file in files}


_STEM = 4
"""Letters that words share which are one: "diagnosis" and "diagnoses", "watch" and "watched"."""


def _share_a_word(name: str, other: str) -> bool:
    return any(
        one.rstrip("es") == two.rstrip("es")
        or (one[:_STEM] == two[:_STEM] and min(len(one), len(two)) >= _STEM)
        for one, two in itertools.product(_words(name), _words(other))
    )


def _words(name: str) -> list[str]:
    parts = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)
    return [part.lower() for part in parts]


def _named(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Parameters, attributes and names of the module, each with the names of its annotation.

    Without what can be called, which verbs name.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield node.arg, _mentioned(node.annotation)
        elif isinstance(node, ast.ClassDef | ast.Module):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield field.target.id, _mentioned(field.annotation)
                elif isinstance(field, ast.Assign):
                    yield from _made(field)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            yield node.target.attr, _mentioned(node.annotation)
        elif isinstance(node, ast.Assign):
            yield from (
                (n, c) for n, c in _made(node) if isinstance(node.targets[0], ast.Attribute)
            )


def _made(node: ast.Assign) -> Iterator[tuple[str, set[str]]]:
    """What is set to a new object of a class."""
    if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
        for target in node.targets:
            if isinstance(target, ast.Name | ast.Attribute):
                name = target.id if isinstance(target, ast.Name) else target.attr
                yield name, {node.value.func.id}


def _mentioned(annotation: ast.expr) -> set[str]:
    """The names in an annotation, also in one that is a string."""
    found = set()
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            with contextlib.suppress(SyntaxError):  # of a Literal
                found |= _mentioned(ast.parse(node.value, mode="eval").body)
    return set() if "Callable" in found else found


def _classes(trees: Mapping[str, ast.Module]) -> set[str]:
    nodes = (node for tree in trees.values() for node in ast.walk(tree))
    return {node.name for node in nodes if isinstance(node, ast.ClassDef)}


def _own(tree: ast.Module, classes: set[str]) -> set[str]:
    """The classes of the package that a file makes or imports."""
    own = _classes({"": tree})
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pytest_ddp"):
            own |= {alias.asname or alias.name for alias in node.names}
    return own & classes


def _strangers(
    trees: Mapping[str, ast.Module], classes: set[str]
) -> Iterator[tuple[str, str, str]]:
    """File, name and classes of what shares no word with any of them."""
    for file, tree in trees.items():
        own = _own(tree, classes)
        for name, mentioned in _named(tree):
            its = mentioned & own
            if its and not any(_share_a_word(name, one) for one in its):
                yield file, name, " ".join(sorted(its))


def _unlisted(strangers: Iterator[tuple[str, str, str]]) -> list[str]:
    listed = {pair for pairs in _ROLES.values() for pair in pairs.split()}
    return [
        f"{file}: {name} is of the class {classes}"
        for file, name, classes in strangers
        if name.strip("_") not in _WHICH.split()
        and not {f"{name}:*", *(f"{name}:{one}" for one in classes.split())} & listed
    ]


def test_parameters_and_attributes_share_a_word_with_their_class() -> None:
    trees = _trees()
    assert not _unlisted(_strangers(trees, _classes(trees)))


@pytest.mark.parametrize(
    "planted",
    [
        "def f(surveyor: Reporter) -> None: ...",
        "def f(*, guests: list[Reporter]) -> None: ...",
        "class Owner:\n    sight: Reporter | None = None",
        "class Owner:\n    def __init__(self) -> None:\n        self._sight = Reporter()",
        "FLEET: dict[str, 'Reporter'] = {}",
    ],
)
def test_a_planted_stranger_is_found(planted: str) -> None:
    tree = ast.parse(f"class Reporter: ...\n{planted}")
    (found,) = _unlisted(_strangers({"planted.py": tree}, {"Reporter"}))
    assert found.endswith("is of the class Reporter")


def test_words_are_the_same_in_either_case_and_number() -> None:
    for name, other in (
        ("status_reporter", "StatusReporter"),
        ("diagnoses", "Diagnosis"),
        ("gpus", "AmdGpu"),
        ("boxes", "Box"),
    ):
        assert _share_a_word(name, other)
    assert not _share_a_word("surveyor", "StatusReporter")
