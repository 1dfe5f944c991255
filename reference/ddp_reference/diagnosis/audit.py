"""Which tensors does a forward pass write to in place, and does that matter under DDP?

Work on activations does not: autograd raises where a value was still needed, alone as in a
group. A parameter that forward writes to does: if what is written depends on the rank, the
ranks' models part ways, and DDP, which sends gradients and no parameters, never notices.
"""

import copy
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Literal
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_ddp.rank.operations.origins import callers
from pytest_ddp.rank.status.phase_stack import place_of

Target = Literal["activation", "buffer", "input", "parameter"]

MEANING: Mapping[Target, str] = {
    "activation": "harmless",
    "buffer": "DDP sends rank 0's before each forward pass, unless broadcast_buffers=False",
    "input": "harmless for DDP, but the caller's batch is another one afterwards",
    "parameter": "the same on every rank, but past the optimizer",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a forward pass writes to."""

    target: Target
    name: str
    """The name of the parameter or the buffer; ``input 0``; for an activation the module it is
    in."""
    operator: str
    """The operator, for example ``aten.relu_``; empty where no operator says that it writes there:
    batch norm's statistics, native code, NumPy."""
    place: str
    """``file:line in function`` of the user's code."""
    rank_dependent: bool = False
    """Ranks 0 and 1 leave different values there."""

    @property
    def harmless(self) -> bool:
        """Whether the ranks' models stay equal, and the optimizer's is the only hand on them."""
        return self.target != "parameter" and not self.rank_dependent

    def __str__(self) -> str:
        meaning = "the ranks' models part ways" if self.rank_dependent else MEANING[self.target]
        how = self.operator or "changed by what declares no write"
        where = f" at {self.place}" if self.place else ""
        return f"{self.target} {self.name}: {how}{where}: {meaning}"


def audit_in_place(module: nn.Module, *inputs: Tensor, seed: int = 0) -> tuple[Finding, ...]:
    """Run forward as rank 0 and as rank 1, on copies, and tell all that it writes to.

    The rank is what ``torch.distributed.get_rank`` and the variables RANK and LOCAL_RANK
    say; random numbers are the same for both. Code that learns its rank in another way is
    taken to be alike on all ranks.
    """
    passes = [_Pass(module, inputs, rank, seed) for rank in (0, 1)]
    differing = {
        name for name, value in passes[0].state.items() if not _same(value, passes[1].state[name])
    }
    found = {finding: None for one in passes for finding in one.findings}
    return tuple(
        replace(finding, rank_dependent=finding.name in differing)
        if finding.target in ("parameter", "buffer")
        else finding
        for finding in found
    )


class _Pass:
    """One forward pass of a copy, as one rank."""

    def __init__(self, module: nn.Module, inputs: tuple[Tensor, ...], rank: int, seed: int) -> None:
        own = copy.deepcopy(module)
        given = tuple(tensor.detach().clone() for tensor in inputs)
        before = _values(own)
        watch = _Writes(own, given)
        with _as_rank(rank), torch.random.fork_rng(devices=[]), watch:
            torch.manual_seed(seed)
            own(*given)
        self.state = _values(own)
        self.findings = [*watch.findings, *_unseen(before, self.state, watch.findings, own)]


class _Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each operator that writes to one of its arguments."""

    def __init__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.findings: list[Finding] = []
        self._names: dict[int, tuple[Target, str]] = {
            **{_memory(tensor): ("input", f"input {n}") for n, tensor in enumerate(inputs)},
            **{_memory(tensor): ("buffer", name) for name, tensor in module.named_buffers()},
            **{_memory(tensor): ("parameter", name) for name, tensor in module.named_parameters()},
        }
        self._stack: list[str] = []
        self._hooks = [
            hook for name, part in module.named_modules() for hook in self._follow(part, name)
        ]

    def _follow(self, part: nn.Module, name: str) -> Iterator[Any]:
        yield part.register_forward_pre_hook(lambda *_: self._stack.append(name))
        yield part.register_forward_hook(lambda *_: self._leave())

    def _leave(self) -> None:
        self._stack.pop()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for tensor in _written(func, args, kwargs or {}):
            self._note(func, tensor)
        return func(*args, **(kwargs or {}))

    def _note(self, func: Any, tensor: Tensor) -> None:
        inside = self._stack[-1] if self._stack else ""
        target, name = self._names.get(_memory(tensor), ("activation", f"in {inside or 'forward'}"))
        operator = str(func).removesuffix(f".{func._overloadname}")
        self.findings.append(Finding(target, name, operator, _calling_place()))


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """The arguments that the operator's schema says it writes to."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from [value] if isinstance(value, Tensor) else (value or ())


def _calling_place() -> str:
    """The innermost line of the user's code; empty where torch's own modules do all."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    place = place_of(callers(frame))
    return "" if place is None or place.file == __file__ else str(place)


@contextmanager
def _as_rank(rank: int) -> Iterator[None]:
    said = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, said))
        stack.enter_context(mock.patch.object(dist, "get_rank", return_value=rank))
        stack.enter_context(mock.patch.object(dist, "get_world_size", return_value=2))
        stack.enter_context(mock.patch.object(dist, "is_initialized", return_value=True))
        yield


def _unseen(
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    findings: list[Finding],
    module: nn.Module,
) -> Iterator[Finding]:
    """What changed without an operator: a write through NumPy or native code."""
    buffers = {name for name, _ in module.named_buffers()}
    seen = {finding.name for finding in findings}
    for name, value in before.items():
        if name not in seen and not _same(value, after[name]):
            yield Finding("buffer" if name in buffers else "parameter", name, "", "")


def _values(module: nn.Module) -> dict[str, Tensor]:
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def _same(one: Tensor, other: Tensor) -> bool:
    return bool(torch.equal(one, other))


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
