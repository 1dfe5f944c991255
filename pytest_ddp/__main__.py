"""``python -m pytest_ddp``: runs commands, each of which is an extension."""

from __future__ import annotations

import sys

from pytest_ddp import extending

_KIND = "command"
"""The module of an extension with ``HELP`` and with ``main``, from arguments to exit code."""


def main(arguments: list[str]) -> int:
    """Run the command that the first argument names; return the exit code."""
    name, *rest = arguments or ["--help"]
    commands = extending.names(_KIND)
    if name in commands:
        code: int = extending.load(name, _KIND).main(rest)
        return code
    is_help = name in ("-h", "--help")
    lines = ["usage: python -m pytest_ddp COMMAND [OPTIONS]", "", "commands:"]
    lines += [f"  {command:<10}{extending.load(command, _KIND).HELP}" for command in commands]
    lines += ["", "COMMAND --help lists its options."]
    if not is_help:
        lines += [f"\nerror: there is no command {name}"]
    print("\n".join(lines), file=sys.stdout if is_help else sys.stderr)
    return 0 if is_help else 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
