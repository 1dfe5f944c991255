"""``python -m pytest_ddp``: commands beside the plugin."""

from __future__ import annotations

import sys
from importlib import import_module

_COMMANDS = {
    "doctor": ("pytest_ddp.doctor.command", "say what of ddp tests this machine can run"),
    "migrate": ("pytest_ddp.migrate.command", "say how tests of an existing suite come aboard"),
    "summary": ("pytest_ddp.summary.command", "print results as Markdown, for a CI job's page"),
}
"""Name; the module whose ``main`` takes arguments and returns the exit code; what it does."""


def main(arguments: list[str]) -> int:
    """Run the command that the first argument names; the exit code."""
    name, *rest = arguments or ["--help"]
    if name in _COMMANDS:
        code: int = import_module(_COMMANDS[name][0]).main(rest)
        return code
    wanted = name in ("-h", "--help")
    lines = ["usage: python -m pytest_ddp COMMAND [OPTIONS]", "", "commands:"]
    lines += [f"  {command:<10}{does}" for command, (_, does) in _COMMANDS.items()]
    lines += ["", "COMMAND --help tells its options."]
    if not wanted:
        lines += [f"\nerror: there is no command {name}"]
    print("\n".join(lines), file=sys.stdout if wanted else sys.stderr)
    return 0 if wanted else 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
