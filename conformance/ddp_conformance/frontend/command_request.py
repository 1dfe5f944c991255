"""The request of the command line, on its way to the process of every rank.

PYTEST_DONT_REWRITE: pytest would warn that it was imported before the session.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ddp_conformance.framework.recording import describe
from ddp_conformance.framework.registry import all_kinds
from ddp_conformance.framework.subjects import Subject
from ddp_conformance.framework.traits import checked_traits
from ddp_conformance.frontend.pytest_frontend import BoundCheck, Pair, bind_checks
from ddp_conformance.frontend.suggest import BY_FACTORY, Description, descriptions

OPTION = "--ddp-conformance-request"


class RequestError(Exception):
    """The request cannot be checked; the text names the value and the fix."""


@dataclass(frozen=True, slots=True)
class Request:
    """The parsed command line."""

    subjects: tuple[tuple[str, str], ...]
    """Name of the kind, and ``module:name``."""
    traits: tuple[str, ...]
    """The traits of subjects that are given by their factory."""
    checks: tuple[str, ...]
    """Ids of guarantees; all if empty."""
    expected: tuple[tuple[str, str], ...]
    """Ids of guarantees that are known to be broken, and why."""
    world_sizes: tuple[int, ...]
    suggest: bool = False
    """Check each subject under all descriptions that its kind allows."""

    def to_json(self) -> str:
        """The request as JSON on one line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Request:
        """The inverse of :meth:`to_json`."""
        return cls(**{name: _tuples(value) for name, value in json.loads(text).items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def cells_of(request: Request) -> list[tuple[Pair, int]]:
    """Every check with its subject and world size; raises :class:`RequestError`."""
    if request.suggest:
        pairs = [(d.subject, BoundCheck(check)) for d in described(request) for check in d.checks]
        return [(pair, size) for pair in pairs for size in request.world_sizes]
    subjects = list(_subjects(request))
    try:
        pairs = bind_checks(subjects, dict(request.expected))
    except ValueError as error:
        raise RequestError(str(error).replace("expected_failures", "--expect")) from None
    wanted = [pair for pair in pairs if not request.checks or pair[1].id in request.checks]
    if not wanted:
        raise RequestError(f"--check {' '.join(request.checks)}: does not apply to these subjects")
    return [(pair, size) for pair in wanted for size in request.world_sizes]


def described(request: Request) -> list[Description]:
    """The subjects under all descriptions; raises :class:`RequestError`."""
    subjects = [subject_at(*one, request.traits) for one in request.subjects]
    return [one for subject in subjects for one in descriptions(subject)]


def kinds_at(place: str, kind: str | None) -> tuple[tuple[str, str], ...]:
    """The kinds that ``--suggest`` tries: that of a subject, or all that a factory may be of."""
    found = _imported(place)
    if kind is not None or isinstance(found, Subject):
        return ((kind_at(place, kind), place),)
    return tuple((each.__name__.lower(), place) for each in BY_FACTORY)


def kind_at(place: str, kind: str | None) -> str:
    """The kind of a subject; for a factory, which has none by itself, the one of ``--as``.

    Raises:
        RequestError: a factory and no kind, or a subject of another one.
    """
    found = _imported(place)
    if kind is None and not isinstance(found, Subject):
        raise RequestError(
            f"{place}: of which kind is the part that it makes? Write --as KIND, one of "
            f"{', '.join(all_kinds())}; --suggest tries the commonest"
        )
    of_object = type(found).__name__.lower() if isinstance(found, Subject) else kind
    if kind not in (None, of_object):
        raise RequestError(f"--as {kind}: {place} is of kind {of_object}; leave --as out")
    return str(of_object)


def _subjects(request: Request) -> Iterator[Subject]:
    """The subjects, renamed if factories of several modules have the same name."""
    found = {one: subject_at(*one, request.traits) for one in dict.fromkeys(request.subjects)}
    names = Counter(subject.name for subject in found.values())
    for (option, place), subject in found.items():
        several = names[subject.name] > 1
        yield dataclasses.replace(subject, name=f"{option} {place}") if several else subject


def subject_at(option: str, place: str, traits: tuple[str, ...]) -> Subject:
    """The subject of a kind at ``module:name``; raises :class:`RequestError`."""
    kind, found = all_kinds()[option], _imported(place)
    if isinstance(found, Subject):
        return found
    try:
        return kind.of(found, checked_traits(traits, "--trait"))
    except ValueError as error:
        raise RequestError(f"{place}: {error}") from None
    except Exception as error:  # attributes of the user's object may raise
        raise RequestError(f"{place}: it cannot be used: {describe(error)}") from None


def _imported(place: str) -> Any:
    module_name, _, name = place.partition(":")
    if not module_name or not name:
        raise RequestError(f"{place}: write it as module:name, as in my_data:make_loader")
    try:
        module = importlib.import_module(module_name)
    except SystemExit:
        raise RequestError(
            f"{place}: {module_name} exits when it is imported; move what it runs below "
            "if __name__ == '__main__'"
        ) from None
    except Exception as error:
        raise RequestError(
            f"{place}: {module_name} cannot be imported "
            f"({describe(error)}); it is looked for in the current directory too"
        ) from None
    try:
        return getattr(module, name)
    except AttributeError:
        close = difflib.get_close_matches(name, dir(module), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise RequestError(f"{place}: {module_name} has no {name!r}{hint}") from None
    except Exception as error:
        raise RequestError(
            f"{place}: {module_name} does not give {name!r} ({describe(error)})"
        ) from None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that carries the request to every rank."""
    parser.addoption(OPTION, dest="conformance_request", help="for internal use")
