"""What a test spawns, read as a pattern that can be rewritten without losing anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, QualifiedNameProvider

from pytest_ddp.migrate.syntax import (
    NotPlainError,
    are_plain,
    assignments,
    backend_of,
    call_of,
    elements_of,
    given_to,
    is_of_place,
    is_text,
    is_true,
    names_in,
    references_in,
    statements_of,
)

_SPAWN = ("torch.multiprocessing.spawn", "torch.multiprocessing.spawn.spawn")
_INIT = "torch.distributed.init_process_group"
_DESTROY = "torch.distributed.destroy_process_group"


@dataclass(frozen=True, slots=True)
class Spawn:
    """``spawn(worker, args=arguments, nprocs=world_size)``, all that a test does."""

    test: str
    worker: str
    world_size: int
    arguments: tuple[cst.BaseExpression, ...]
    locals: dict[str, cst.BaseExpression]
    """What the test assigns before."""


@dataclass(frozen=True, slots=True)
class Worker:
    """What remains of a spawned function once it need not make itself a rank."""

    body: tuple[cst.BaseStatement, ...]
    backend: str
    dropped: frozenset[int]
    """Places of parameters that nothing uses any more, of those after the rank."""


class File:
    """What a rewriting asks of a file."""

    def __init__(self, wrapper: MetadataWrapper) -> None:
        self._names = wrapper.resolve(QualifiedNameProvider)
        self._tree = wrapper.module
        self._functions = {
            node.name.value: node for node in self._tree.body if isinstance(node, cst.FunctionDef)
        }
        self._constants = dict(assignments(self._tree.body))
        self._asked: set[str] = set()

    # ------------------------------------------------------------------ the test

    def spawn(self, name: str) -> Spawn:
        """What a test does, which is to spawn.

        Raises:
            NotPlainError: it does more.
        """
        test = self._functions.get(name)
        if test is None:
            raise NotPlainError("it is a method")
        if any(param.name.value == "ddp" for param in test.params.params):
            raise NotPlainError("it has a parameter named ddp")
        *before, last = statements_of(test)
        assigned = dict(assignments(before))
        if len(assigned) < len(before):
            raise NotPlainError("it does more than spawn")
        call = call_of(last)
        if call is None or self._qualified(call.func) not in _SPAWN:
            raise NotPlainError("it does not end with torch.multiprocessing.spawn")
        given = given_to(call, ("fn", "args", "nprocs", "join", "daemon", "start_method"))
        if given.keys() - {"fn", "args", "nprocs", "join", "daemon"} or not is_true(
            given.get("join")
        ):
            raise NotPlainError("it does not join, or names a start method")
        worker = given.get("fn")
        if not isinstance(worker, cst.Name) or worker.value not in self._functions:
            raise NotPlainError("what it spawns is no function of this file")
        size = self._number(given.get("nprocs"), assigned)
        return Spawn(name, worker.value, size, elements_of(given.get("args")), assigned)

    def _number(
        self, node: cst.BaseExpression | None, assigned: dict[str, cst.BaseExpression]
    ) -> int:
        if isinstance(node, cst.Name):
            node = assigned.get(node.value) or self._constants.get(node.value)
        if not isinstance(node, cst.Integer):
            raise NotPlainError("its nprocs is no number that the file tells")
        return int(node.value)

    # ------------------------------------------------------------------ what it spawns

    def worker(self, name: str, spawns: int) -> Worker:
        """What remains of a function that ``spawns`` tests spawn, and nobody else uses.

        Raises:
            NotPlainError: it is used elsewhere, or is no rank in a way that is known.
        """
        function = self._functions[name]
        if self._uses(name) != spawns:
            raise NotPlainError(f"{name} is used elsewhere too")
        params = function.params
        if function.decorators or function.asynchronous or not are_plain(params):
            raise NotPlainError(f"{name} has decorators, or parameters of a special kind")
        backends: list[str] = []
        body = tuple(self._rest(function.body.body, backends))
        if len(backends) != 1:
            raise NotPlainError(
                f"{name} does not call init_process_group once, in a line of its own"
            )
        used = {name for part in body for name in names_in(part)}
        if {_INIT, _DESTROY} & {self._qualified(n) for s in body for n in references_in(s)}:
            raise NotPlainError(
                f"{name} makes or destroys its process group within other statements"
            )
        dropped = {n for n, p in enumerate(params.params[1:]) if p.name.value not in used}
        return Worker(body, backends[0], frozenset(dropped))

    def _rest(
        self, statements: Iterable[cst.BaseStatement | cst.BaseSmallStatement], backends: list[str]
    ) -> Iterator[cst.BaseStatement]:
        for statement in statements:
            if not isinstance(statement, cst.BaseStatement):
                raise NotPlainError("its function is written in one line")
            if self._makes_rank(statement, backends):
                continue
            if isinstance(statement, cst.Try) and self._only_destroys(statement):
                yield from self._rest(statement.body.body, backends)
            else:
                yield statement

    def _only_destroys(self, statement: cst.Try) -> bool:
        end = statement.finalbody
        if end is None or statement.handlers or statement.orelse:
            return False
        return all(
            isinstance(s, cst.BaseStatement) and self._makes_rank(s, []) for s in end.body.body
        )

    def _makes_rank(self, statement: cst.BaseStatement, backends: list[str]) -> bool:
        """Whether it is only there to make a process a rank, or to end that."""
        if is_of_place(statement):
            return True
        call = call_of(statement)
        if call is None:
            return False
        name = self._qualified(call.func)
        if name == _INIT:
            backends.append(backend_of(call))
        elif name in self._functions:
            inner: list[str] = []
            if not self._is_helper(self._functions[name], inner):
                return False
            backends += inner
        return name in (_INIT, _DESTROY) or name in self._functions

    def _is_helper(self, function: cst.FunctionDef, backends: list[str]) -> bool:
        name = function.name.value
        if name in self._asked:
            return False  # it calls itself
        self._asked.add(name)
        try:
            return all(
                isinstance(s, cst.BaseStatement) and (is_text(s) or self._makes_rank(s, backends))
                for s in function.body.body
            )
        finally:
            self._asked.discard(name)

    def helpers(self, workers: Iterable[str]) -> set[str]:
        """Functions of the file that only made ranks, for these workers and for nobody else."""
        within = [self._functions[name] for name in workers]
        found = set()
        for name, function in self._functions.items():
            try:
                is_helper = self._is_helper(function, [])
            except NotPlainError:
                continue
            if is_helper and self._uses(name) == sum(self._uses(name, part) for part in within):
                found.add(name)
        return found

    def _uses(self, name: str, within: cst.CSTNode | None = None) -> int:
        nodes = m.findall(within or self._tree, m.Name(name))
        defined = self._functions[name].name
        return sum(node is not defined for node in nodes)

    def _qualified(self, node: cst.CSTNode) -> str:
        names = self._names.get(node, ())
        names = names() if callable(names) else names
        return min((name.name for name in names), default="")


def arguments_of(spawn: Spawn, worker: Worker) -> list[cst.BaseExpression]:
    """What the function is still called with, besides its rank.

    Raises:
        NotPlainError: a value that is made before ranks begin, and is not the same on each of them.
    """
    kept = [value for n, value in enumerate(spawn.arguments) if n not in worker.dropped]
    for value in (*kept, *needed_by(spawn, kept).values()):
        if m.findall(value, m.Call() | m.Lambda() | m.Await() | m.GeneratorExp()):
            code = cst.Module([]).code_for_node(value)
            raise NotPlainError(f"it hands over {code}, which is made before the ranks")
    return kept


def needed_by(spawn: Spawn, kept: Sequence[cst.BaseExpression]) -> dict[str, cst.BaseExpression]:
    """Of what the test assigns, that which the call still uses."""
    needed: dict[str, cst.BaseExpression] = {}
    left = list(kept)
    while left:
        for name in names_in(left.pop()):
            if name in spawn.locals and name not in needed:
                needed[name] = spawn.locals[name]
                left.append(spawn.locals[name])
    return needed
