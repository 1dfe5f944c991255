"""``python -m ddp_reference.cache check|repair|build PATH``.

Exit codes: 0 the cache is sound (now), 1 it is not, 2 the command line is wrong.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from torch import Tensor

from .format import CacheError, Manifest, read_layout
from .publish import Recipe, build
from .repair import check, repair

# By name: the cache knows nothing of what it holds.
DEFAULT_PRODUCER = "ddp_reference.training.burgers:latent_pairs"

Producer = Callable[[int, int], Mapping[str, Tensor]]


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], Manifest | None] = options.run
    try:
        manifest = run(options)
    except CacheError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 1
    if manifest is not None:
        print(f"sound: {manifest.count} samples, digest {manifest.digest}, {manifest.source}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ddp_reference.cache", description=__doc__)
    commands = parser.add_subparsers(required=True)
    checking = commands.add_parser("check", help="say all that is wrong with a cache file")
    checking.set_defaults(run=_check)
    repairing = commands.add_parser("repair", help="write a sound cache of what is left")
    repairing.add_argument("--output", type=Path, help="instead of PATH itself")
    repairing.set_defaults(run=_repair)
    building = commands.add_parser("build", help="produce the samples, unless they are there")
    building.add_argument("--samples", type=int, default=2000)
    building.add_argument("--seed", type=int, default=0)
    building.add_argument(
        "--producer",
        type=_producer,
        default=DEFAULT_PRODUCER,
        help="module:function(samples, seed) -> dict of tensors (default: %(default)s)",
    )
    building.set_defaults(run=_build)
    for command in (checking, repairing, building):
        command.add_argument("path", type=Path, metavar="PATH")
    return parser


def _producer(name: str) -> Producer:
    try:
        found = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"no producer {name!r}: {error}") from error
    if not callable(found):
        raise argparse.ArgumentTypeError(f"{name!r} is a {type(found).__name__}, not a function")
    producer: Producer = found
    return producer


def _check(options: argparse.Namespace) -> Manifest | None:
    problems = check(options.path)
    if problems:
        raise CacheError(problems)
    return read_layout(options.path).manifest


def _repair(options: argparse.Namespace) -> Manifest | None:
    return repair(options.path, options.output or options.path)


def _build(options: argparse.Namespace) -> Manifest | None:
    producer: Producer = options.producer
    produce = partial(producer, options.samples, options.seed)
    source = f"{producer.__module__}:{producer.__qualname__} {options.samples} {options.seed}"
    build(options.path, Recipe(produce, source))
    return _check(options)


if __name__ == "__main__":
    sys.exit(main())
