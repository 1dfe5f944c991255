"""``python -m pytest_ddp``: commands beside the plugin, an extension each."""

from __future__ import annotations

import sys

from pytest_ddp import extending

_KIND = "command"
"""The module of an extension that has ``HELP``, and ``main``: arguments to exit code."""


def main(arguments: list[str]) -> int:
    """Run the command that the first argument names; the exit code."""
    name, *rest = arguments or ["--help"]
    commands = extending.names(_KIND)
    if name in commands:
        code: int = extending.load(name, _KIND).main(rest)
        return code
    wanted = name in ("-h", "--help")
    lines = ["usage: python -m pytest_ddp COMMAND [OPTIONS]", "", "commands:"]
    lines += [f"  {command:<10}{extending.load(command, _KIND).HELP}" for command in commands]
    lines += ["", "COMMAND --help tells its options."]
    if not wanted:
        lines += [f"\nerror: there is no command {name}"]
    print("\n".join(lines), file=sys.stdout if wanted else sys.stderr)
    return 0 if wanted else 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
