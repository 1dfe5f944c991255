"""The public names with their signatures, as text.

Public are the names in ``__all__`` of both packages, the public attributes of what they name, and
the hooks. griffe reads the source, and imports nothing. ``python -m tests.release.public_names``
writes the file that a test compares with.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_suffix(".txt")
_WHERE = {"pytest_ddp": ROOT, "ddp_conformance": ROOT / "conformance"}


def lines() -> Iterator[str]:
    """One line for each public name, in order."""
    for package, folder in _WHERE.items():
        module = griffe.load(package, search_paths=[folder], resolve_aliases=True)
        for name in sorted(map(str, _exports(module))):
            yield from _lines(f"{package}.{name}", module[name])
    hooks = griffe.load("pytest_ddp.hookspecs", search_paths=[ROOT])
    for name, hook in sorted(hooks.functions.items()):
        if name.startswith("pytest_ddp_"):
            yield f"hook {name}{_signature(hook)}"


def _exports(module: griffe.Module | griffe.Alias) -> list[str]:
    assert module.exports is not None
    return [getattr(name, "name", name) for name in module.exports]


def _lines(path: str, found: griffe.Object | griffe.Alias) -> Iterator[str]:
    if found.is_function:
        yield f"{path}{_signature(found)}"
    elif found.is_class:
        bases = ", ".join(str(base) for base in found.bases)
        yield f"class {path}({bases})" if bases else f"class {path}"
        for name, member in sorted(found.members.items()):
            if not name.startswith("_") or name == "__init__":
                yield from _lines(f"{path}.{name}", member)
    else:
        annotation = getattr(found, "annotation", None)
        yield f"{path}: {annotation}" if annotation else path


def _signature(function: griffe.Object | griffe.Alias) -> str:
    parameters = []
    for parameter in function.parameters:
        default = "" if parameter.default is None else f" = {parameter.default}"
        kind = {"variadic positional": "*", "variadic keyword": "**"}.get(parameter.kind.value, "")
        only = " (keyword)" if parameter.kind.value == "keyword-only" else ""
        parameters.append(f"{kind}{parameter.name}{default}{only}")
    return f"({', '.join(parameters)})"


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")
