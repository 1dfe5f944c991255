"""``python -m pytest_ddp``: runs commands, most of which are extensions."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from types import ModuleType

from pytest_ddp import extending
from pytest_ddp.verdict import explain

_KIND = "command"
"""The module of an extension with ``HELP`` and with ``main``, from arguments to exit code."""
_OWN = {"explain": explain}
"""Commands of the core."""


def main(arguments: list[str]) -> int:
    """Run the command that the first argument names; return the exit code."""
    name, *rest = arguments or ["--help"]
    commands = sorted([*_OWN, *extending.names(_KIND)])
    if name in commands:
        code: int = _load(name).main(rest)
        return code
    if name == "--version":
        print(_versions())
        return 0
    if name in ("-h", "--help"):
        print("usage: python -m pytest_ddp COMMAND [OPTIONS]\n\ncommands:")
        print("\n".join(f"  {command:<10}{_load(command).HELP}" for command in commands))
        print("\nCOMMAND --help lists its options, --version prints versions.")
        return 0
    print(f"error: there is no command {name}", file=sys.stderr)
    print(f"usage: python -m pytest_ddp {{{','.join(commands)}}} [OPTIONS]", file=sys.stderr)
    return 2


def _load(name: str) -> ModuleType:
    return _OWN.get(name) or extending.load(name, _KIND)


def _versions() -> str:
    """This package's version and those on which its behaviour depends, for reports of bugs."""
    others = ", ".join(f"{name} {_version(name)}" for name in ("pytest", "torch"))
    return f"pytest-ddp {_version('pytest-ddp')} (Python {platform.python_version()}, {others})"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
