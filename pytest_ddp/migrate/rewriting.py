"""Tests that only spawn one function on every rank, rewritten as ddp tests.

What such a function does to be a rank goes: the addresses in the environment, the process group
made and destroyed, whether it does so itself or by a helper. What remains of it is called with
``ddp.rank``. A pattern with anything else in it is left as it is, with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import libcst as cst
from libcst.codemod import CodemodContext
from libcst.codemod.visitors import AddImportsVisitor, RemoveImportsVisitor
from libcst.metadata import MetadataWrapper

from pytest_ddp.migrate.patterns import File, Spawn, Worker, arguments_of, needed_by
from pytest_ddp.migrate.syntax import NotPlainError, assignments, is_text, statements_of


@dataclass(frozen=True, slots=True)
class Result:
    """A file with what was rewritten, and why tests were left."""

    source: str
    left: dict[str, str]


def rewrite(source: str, tests: Collection[str]) -> Result:
    """Make ddp tests of these tests of a file, as far as their pattern is plain."""
    wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    file = File(wrapper)
    left: dict[str, str] = {}
    spawns: list[Spawn] = []
    for name in sorted(tests):
        try:
            spawns.append(file.spawn(name))
        except NotPlainError as reason:
            left[name] = str(reason)
    workers: dict[str, Worker] = {}
    for name in dict.fromkeys(spawn.worker for spawn in spawns):
        own = [spawn for spawn in spawns if spawn.worker == name]
        try:
            workers[name] = file.worker(name, len(own))
            for spawn in own:
                arguments_of(spawn, workers[name])
        except NotPlainError as reason:
            workers.pop(name, None)
            left |= {spawn.test: str(reason) for spawn in own}
    done = [spawn for spawn in spawns if spawn.worker in workers]
    return Result(_written(wrapper, file, done, workers) if done else source, left)


def _written(
    wrapper: MetadataWrapper, file: File, spawns: list[Spawn], workers: dict[str, Worker]
) -> str:
    context = CodemodContext(wrapper=wrapper)
    changed = wrapper.module.visit(_Rewriting(spawns, workers, file.helpers(workers)))
    AddImportsVisitor.add_needed_import(context, "pytest")
    changed = AddImportsVisitor(context).transform_module(changed)
    context = CodemodContext()
    for module, name, alias in _imported(wrapper.module):
        RemoveImportsVisitor.remove_unused_import(context, module, name, alias)
    # Where the first import went, the empty line before the second stays.
    return RemoveImportsVisitor(context).transform_module(changed).code.lstrip("\n")


def _imported(tree: cst.Module) -> Iterator[tuple[str, str | None, str | None]]:
    """The imports that only a rank in the making needs."""
    yield from (("torch.multiprocessing", None, alias) for alias in (None, "mp"))
    yield from (("torch.multiprocessing", "spawn", None), ("torch", "multiprocessing", None))
    yield from (("torch", "multiprocessing", "mp"), ("os", None, None))
    for alias in (None, "dist"):
        yield from (("torch.distributed", None, alias), ("torch", "distributed", alias))


class _Rewriting(cst.CSTTransformer):
    def __init__(
        self, spawns: list[Spawn], workers: dict[str, Worker], helpers: Collection[str]
    ) -> None:
        super().__init__()
        self._spawns = {spawn.test: spawn for spawn in spawns}
        self._workers = workers
        self._helpers = helpers
        self._depth = 0

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: N802
        self._depth += 1

    def leave_FunctionDef(  # noqa: N802
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef | cst.RemovalSentinel:
        self._depth -= 1
        name = original_node.name.value
        if self._depth:
            return updated_node
        if name in self._helpers:
            return cst.RemoveFromParent()
        if name in self._workers:
            return _worker(updated_node, self._workers[name])
        if name in self._spawns:
            spawn = self._spawns[name]
            return _test(updated_node, spawn, self._workers[spawn.worker])
        return updated_node


def _worker(node: cst.FunctionDef, worker: Worker) -> cst.FunctionDef:
    first, *others = node.params.params
    kept = [param for n, param in enumerate(others) if n not in worker.dropped]
    params = [param.with_changes(comma=cst.MaybeSentinel.DEFAULT) for param in (first, *kept)]
    body = worker.body or (cst.parse_statement("pass"),)
    return node.with_changes(
        params=node.params.with_changes(params=params),
        body=node.body.with_changes(body=body),
    )


def _test(node: cst.FunctionDef, spawn: Spawn, worker: Worker) -> cst.FunctionDef:
    kept = arguments_of(spawn, worker)
    needed = needed_by(spawn, kept)
    arguments = [cst.parse_expression("ddp.rank"), *kept]
    call = cst.Call(cst.Name(spawn.worker), [cst.Arg(value) for value in arguments])
    before = [
        s
        for s in statements_of(node)[:-1]
        if {name for name, _ in assignments([s])} <= needed.keys()
    ]
    text = [s for s in node.body.body if is_text(s)]
    mark = f"pytest.mark.ddp(world_size={spawn.world_size}"
    mark += ")" if worker.backend == "gloo" else f', backend="{worker.backend}")'
    decorator = cst.Decorator(cst.parse_expression(mark))
    last = cst.SimpleStatementLine([cst.Expr(call)])
    params = [cst.Param(cst.Name("ddp")), *node.params.params]
    return node.with_changes(
        params=node.params.with_changes(params=params),
        decorators=[*node.decorators, decorator],
        body=node.body.with_changes(body=[*text, *before, last]),
    )
