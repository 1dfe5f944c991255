"""``--explain MET-02``: a guarantee, with a part that breaks it and one that keeps it."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from ddp_conformance.framework.mutants import (
    BenignVariant,
    Mutant,
    all_benign_variants,
    all_mutants,
)
from ddp_conformance.framework.registry import checks_for
from ddp_conformance.framework.subjects import Subject

SPEC = Path(__file__).parents[1] / "SPEC.md"


@dataclass(frozen=True)
class Examples:
    """Components that break and keep a guarantee, with their source code."""

    broken: Mutant
    broken_code: str
    kept: BenignVariant
    kept_code: str
    """The variant's code without what it shares with the mutant."""
    others: tuple[Mutant, ...]
    """Further mutants that break the guarantee."""


def explanation(guarantee_id: str) -> Iterator[str]:
    """The lines: the entry in SPEC, the first mutant, the most similar benign variant, and the
    names of the other mutants."""
    yield from entry(guarantee_id).replace("**", "").splitlines()
    shown = examples(guarantee_id)
    if shown is None:
        yield "# Its examples use Lightning: pip install 'pytest-ddp[lightning]'"
        return
    yield f"# Breaks it: {shown.broken.defect}\n"
    yield shown.broken_code
    yield f"# Keeps it: {shown.kept.likeness}\n"
    yield shown.kept_code
    if shown.others:
        yield "# Breaks it too:"
        yield from (f"# - {mutant.subject.name}: {mutant.defect}" for mutant in shown.others)


def entry(guarantee_id: str) -> str:
    """The guarantee's section in SPEC, without the marks of its heading."""
    text = SPEC.read_text(encoding="utf-8")
    found = re.search(rf"^### ({guarantee_id}\b.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{guarantee_id} has a check and no entry"
    return found[1]


def examples(guarantee_id: str) -> Examples | None:
    """The first mutant of the guarantee and the benign variant most like it; None if they use a
    library that is not installed."""
    mutants = [m for m in all_mutants(installed_only=True) if m.guarantee == guarantee_id]
    variants = [t for t in all_benign_variants(installed_only=True) if _is_bound(t, guarantee_id)]
    if not (mutants and variants):
        return None
    broken, *others = mutants
    kept = most_similar(broken, variants)
    known = _code_of(broken.subject)
    own = [one for one in _code_of(kept.subject) if one not in known]
    return Examples(
        broken, _example(broken.subject, known), kept, _example(kept.subject, own), tuple(others)
    )


def _example(subject: Subject, code: Sequence[Any]) -> str:
    return "\n".join([*(f"{inspect.getsource(one)}\n" for one in code), f"# {subject!r}\n"])


def _is_bound(variant: BenignVariant, guarantee_id: str) -> bool:
    checks = [check for check in checks_for(variant.subject) if check.id == guarantee_id]
    return any(check.obstacle(variant.subject) is None for check in checks)


def most_similar(mutant: Mutant, variants: Sequence[BenignVariant]) -> BenignVariant:
    """The benign variant of its kind that shares most of its code and traits, and has little of
    its own."""
    code = _code_of(mutant.subject)

    def likeness(variant: BenignVariant) -> tuple[bool, int, int, int]:
        own = _code_of(variant.subject)
        shared = [one for one in own if one in code]
        traits = len(mutant.subject.traits ^ variant.subject.traits)
        same_kind = type(variant.subject) is type(mutant.subject)
        return same_kind, len(shared), -traits, len(shared) - len(own)

    return max(variants, key=likeness)


def _code_of(subject: Subject) -> list[Any]:
    """The functions and classes of a mutant or a benign variant, each after those that it uses."""
    found: list[Any] = []
    for field in dataclasses.fields(subject):
        _collect(getattr(subject, field.name), found)
    return found


def _collect(value: Any, found: list[Any]) -> None:
    while isinstance(value, functools.partial):
        value = value.func
    ours = ".mutants." in str(getattr(value, "__module__", ""))
    if not ours or value in found or not (inspect.isfunction(value) or inspect.isclass(value)):
        return
    where = inspect.getmodule(value)
    found.append(value)  # ends the recursion if the code uses itself
    for name in dict.fromkeys(_used(value)):
        _collect(getattr(where, name, None), found)
    found.remove(value)
    found.append(value)


def _used(value: Any) -> Iterator[str]:
    """Names of globals that a function, or a class with its bases and methods, looks up."""
    if inspect.isfunction(value):
        yield from _looked_up(value.__code__)
    else:
        yield from (base.__name__ for base in value.__bases__)
        for method in vars(value).values():
            function = method.fget if isinstance(method, property) else method
            code = getattr(function, "__code__", None)
            yield from _looked_up(code) if code is not None else ()


def _looked_up(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _looked_up(constant)
