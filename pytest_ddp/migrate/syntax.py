"""Pieces of code, as a rewriting asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import libcst as cst
import libcst.matchers as m

_PLACE = {"MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE"}
_OF_INIT = {"backend", "init_method", "rank", "world_size"}


class NotPlainError(Exception):
    """A pattern has something in it that could be lost; says what."""


def statements_of(function: cst.FunctionDef) -> list[cst.BaseStatement]:
    """Those of a body, without its docstring."""
    body = [s for s in function.body.body if isinstance(s, cst.BaseStatement)]
    return [s for s in body if not is_text(s)] or [cst.parse_statement("pass")]


def is_text(statement: cst.CSTNode) -> bool:
    text = m.SimpleString() | m.ConcatenatedString()
    return m.matches(statement, m.SimpleStatementLine([m.Expr(text)]))


def call_of(statement: cst.BaseStatement) -> cst.Call | None:
    """The call that a statement is."""
    match statement:
        case cst.SimpleStatementLine(body=[cst.Expr(value=cst.Call() as call)]):
            return call
    return None


def assignments(
    statements: Iterable[cst.BaseStatement],
) -> Iterator[tuple[str, cst.BaseExpression]]:
    for statement in statements:
        match statement:
            case cst.SimpleStatementLine(
                body=[
                    cst.Assign(targets=[cst.AssignTarget(target=cst.Name() as name)], value=value)
                ]
            ):
                yield name.value, value


def given_to(call: cst.Call, places: Sequence[str]) -> dict[str, cst.BaseExpression]:
    """Arguments by name."""
    given = {}
    for place, argument in enumerate(call.args):
        if argument.star:
            raise NotPlainError("it calls spawn with a star")
        name = argument.keyword.value if argument.keyword else places[place]
        given[name] = argument.value
    return given


def is_true(node: cst.BaseExpression | None) -> bool:
    return node is None or m.matches(node, m.Name("True"))


def elements_of(node: cst.BaseExpression | None) -> tuple[cst.BaseExpression, ...]:
    if node is None:
        return ()
    if not isinstance(node, cst.Tuple) or any(
        isinstance(e, cst.StarredElement) for e in node.elements
    ):
        raise NotPlainError("its args are no tuple in the call")
    return tuple(element.value for element in node.elements)


def are_plain(params: cst.Parameters) -> bool:
    special = params.kwonly_params or params.posonly_params or params.star_kwarg
    return bool(params.params) and not special and not isinstance(params.star_arg, cst.Param)


def backend_of(call: cst.Call) -> str:
    given = given_to(call, ("backend", "init_method", "timeout", "world_size", "rank"))
    if others := given.keys() - _OF_INIT:
        raise NotPlainError(f"init_process_group is given {', '.join(sorted(others))}")
    backend = given.get("backend")
    if not isinstance(backend, cst.SimpleString) or not isinstance(backend.evaluated_value, str):
        raise NotPlainError("its backend is no text in the call")
    return backend.evaluated_value


def is_of_place(statement: cst.BaseStatement) -> bool:
    """``os.environ["MASTER_PORT"] = …``, or by ``setdefault``."""
    environ = m.Attribute(m.Name("os"), m.Name("environ"))
    key = m.SaveMatchedNode(m.SimpleString(), "key")
    item = m.Subscript(environ, [m.SubscriptElement(m.Index(key))])
    default = m.Call(m.Attribute(environ, m.Name("setdefault")), [m.Arg(key), m.ZeroOrMore()])
    line = m.SimpleStatementLine([m.Assign([m.AssignTarget(item)]) | m.Expr(default)])
    found = m.extract(statement, line)
    if found is None:
        return False
    name = found["key"]
    return isinstance(name, cst.SimpleString) and name.evaluated_value in _PLACE


def names_in(node: cst.CSTNode) -> list[str]:
    return [cst.ensure_type(found, cst.Name).value for found in m.findall(node, m.Name())]


def references_in(node: cst.CSTNode) -> Sequence[cst.CSTNode]:
    return m.findall(node, m.Name() | m.Attribute())
