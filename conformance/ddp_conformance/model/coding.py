"""What a launched rank does for MOD-10: put codes in place of gradients, and look where they go.

In each step one rank has gradients of which every element is a number of its own, and the others
have zeros. So a reduced element is recognised by its value, in any buffer, and each time. The
result would not show it: two means of all ranks leave the same value as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.places import call_site
from ddp_conformance.launched.history import Happened
from ddp_conformance.launched.journal import Journal
from ddp_conformance.launched.order import Order
from ddp_conformance.launched.process.optimizing import digest, parameters_in
from ddp_conformance.launched.process.saving import bare_name
from ddp_conformance.launched.rank_devices import join, leave
from ddp_conformance.model.history import Coded, Reduced, SteppedWith
from ddp_conformance.model.optimizer_calls import OptimizerCalls
from ddp_conformance.model.steps import around_backward, demand_no_fsdp1, keep
from ddp_conformance.model.subjects import Trainee
from ddp_conformance.model.taking_over import dense
from pytest_ddp.rank.operations.operation import Operation
from pytest_ddp.rank.operations.process import operations_of_process
from pytest_ddp.rank.operations.stream import Needs

SPACING = 2.0**-19
"""The distance between codes, which are 1 + SPACING, 1 + 2 * SPACING, …, times a power of two."""
MOST = 2**15
"""Elements with a code: the first ones. The codes stay below 1.0625, so that none is three times
another one, or a third of it, times a power of two: a mean of three ranks is recognised."""
ROUNDING = 2.0**-21
"""Four units in the last place of float32."""
SCALE = 2.0**-10
"""Small, as the parameters are stepped with it."""

_RED_OP_TYPES: Any = dist.ReduceOp.RedOpType
_SUMS = {int(_RED_OP_TYPES.__members__[name]) for name in ("SUM", "AVG", "PREMUL_SUM")}
_CODED = (torch.float32, torch.float64)


def take_coded_steps(order: Order, journal: Journal) -> None:
    """Train on all ranks, with codes for gradients."""
    make, (size, steps) = order.work.entry.load(), map(int, order.work.argv)
    case = Case(size, order.rank, order.world_size, Path(order.directory))
    join(order.device)
    trainee = Trainee(*make(case))
    demand_no_fsdp1(trainee.model)
    keep(trainee)
    coder = Coder(trainee.model, order.rank, order.world_size, journal)
    for number in range(steps):
        coder.step(trainee, number)
    coder.close()
    leave()
    journal.add(Happened(order.rank, "returned"))


def codes(first: int, elements: int) -> Tensor:
    """Values for elements that are numbered from ``first``; 0 beyond :data:`MOST`. float64."""
    numbers = torch.arange(first, first + elements, dtype=torch.float64)
    return torch.where(numbers < MOST, (1 + (numbers + 1) * SPACING) * SCALE, 0.0)


def elements_of(values: Tensor) -> list[int]:
    """Numbers of the elements with codes in a buffer, times any power of two and of three.

    Only those beside the element before or after them: a lone value may be a code by chance, and
    the norm of a single number is that number.
    """
    values = values.detach().reshape(-1).double().abs().cpu()
    found = torch.full(values.shape, -1, dtype=torch.int64)
    for power in range(-2, 3):
        mantissas = torch.frexp(values * 3.0**power).mantissa * 2
        numbers = ((mantissas - 1) / SPACING).round()
        fits = (mantissas - 1 - numbers * SPACING).abs() <= ROUNDING
        fits &= (numbers >= 1) & (numbers <= MOST)
        found = torch.where(fits, numbers.long() - 1, found)
    follows = (found[1:] == found[:-1] + 1) & (found[:-1] >= 0)
    no = torch.zeros(1, dtype=torch.bool)
    beside = torch.cat([no, follows]) | torch.cat([follows, no])
    return sorted(set(found[beside].tolist())) if len(found) > 1 else []


class Coder:
    """Puts the codes into one rank's steps, and records the operations that reduce them."""

    def __init__(self, model: nn.Module, rank: int, world_size: int, journal: Journal) -> None:
        self._rank, self._world_size, self._journal = rank, world_size, journal
        self._parameters = {bare_name(n): p for n, p in model.named_parameters() if p.requires_grad}
        self._first = dict(zip(self._parameters, _starts(self._parameters.values()), strict=True))
        self._names = {id(parameter): name for name, parameter in self._parameters.items()}
        self._hooked: list[Any] = []
        self._step = 0
        self._place = -1
        """The number of backward passes before this one in the step."""
        self._reducing: Optimizer | None = None
        """The optimizer whose own gradients may still change in its step."""
        self._passes = 1
        """The number of passes in the step before."""
        self._incoming: dict[str, str] = {}
        for name, parameter in self._parameters.items():
            self._hook(name, parameter)
        for name, module in model.named_modules():
            if any(isinstance(p, DTensor) for p in module.parameters(recurse=False)):
                module.register_forward_pre_hook(self._gathered(name))
        around_backward(self._backward)
        self._stepped_with: list[SteppedWith] = []
        """Those of this step so far."""
        OptimizerCalls(self._about_to_step, self._goes_on)
        needs = Needs.CPP | Needs.ARGUMENTS
        self._end = operations_of_process().subscribe(self, needs)

    def close(self) -> None:
        """Stop watching operations."""
        self._end()

    def step(self, trainee: Trainee, number: int) -> None:
        """Make a step, in which one rank has codes in one of its backward passes."""
        self._step, self._place, self._incoming = number + 1, -1, {}
        self._stepped_with.clear()
        trainee.step(number)
        for seen in self._stepped_with:
            self._journal.add(seen)
        incoming = tuple(self._incoming.items())
        self._journal.add(Coded(self._rank, self._step, self._is_source, incoming))
        self._passes = self._place + 1

    @property
    def _is_source(self) -> bool:
        return (self._step - 1) % self._world_size == self._rank

    @property
    def _coded_pass(self) -> int:
        return (self._step - 1) // self._world_size % max(self._passes, 1)

    # ------------------------------------------------------------------ gradients

    def _hook(self, name: str, parameter: Any) -> None:
        """Hook a parameter before the hooks that there are, which may reduce."""
        if isinstance(parameter, DTensor) or any(parameter is known for known in self._hooked):
            return
        self._hooked.append(parameter)
        before = dict(parameter._backward_hooks or {})
        parameter.register_hook(lambda gradient: self._coded(name, gradient))
        hooks = parameter._backward_hooks
        # torch reads the order of the plain dict, which OrderedDict.move_to_end does not change.
        for key in before:
            hooks[key] = hooks.pop(key)

    def _gathered(self, module_name: str) -> Callable[..., None]:
        """A hook for the parameters that FSDP makes of its shards for each pass."""

        def enter(module: nn.Module, *_: Any) -> None:
            for name, parameter in module.named_parameters(recurse=False):
                known = bare_name(f"{module_name}.{name}".lstrip("."))
                if known in self._first:
                    self._hook(known, parameter)

        compiler: Any = torch.compiler
        hook: Callable[..., None] = compiler.disable(enter)
        return hook

    def _coded(self, name: str, gradient: Tensor) -> Tensor | None:
        plain = type(gradient) is Tensor and gradient.layout == torch.strided
        if not plain or gradient.dtype not in _CODED:
            return None
        if self._place != self._coded_pass or name in self._incoming:
            return torch.zeros_like(gradient)
        self._incoming[name] = digest([gradient])
        if not self._is_source:
            return torch.zeros_like(gradient)
        values = codes(self._first[name], gradient.numel())
        return values.to(gradient).reshape(gradient.shape)

    def _backward(self, run: Callable[[], Any]) -> Any:
        self._place += 1
        return run()

    # ------------------------------------------------------------------ where they are

    def before(self, operation: Operation) -> None:
        """Look for codes in what is about to be reduced."""
        if operation.form.reduces and operation.given is not None and self._is_source:
            if operation.given.get("reduce_op").op() not in _SUMS:
                return
            coded = (one for one in operation.tensors if one.dtype in _CODED)
            numbers = [number for one in coded for number in elements_of(one)]
            if numbers:
                members = tuple(dist.get_process_group_ranks(operation.process_group))
                found = tuple(self._by_name(numbers))
                self._journal.add(
                    Reduced(self._rank, self._step, members, found, self._place, call_site())
                )

    def _by_name(self, numbers: Sequence[int]) -> Iterator[tuple[str, tuple[int, ...]]]:
        for name, first in self._first.items():
            end = first + self._parameters[name].numel()
            own = tuple(number - first for number in numbers if first <= number < end)
            if own:
                yield name, own

    def _about_to_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        # With a closure, gradients are made in the step.
        self._reducing = None
        if kwargs.get("closure") is None and len(args) == 1:
            self._reducing = optimizer
            self._stepped_with.append(self._gradients_of(optimizer))

    def _goes_on(self, optimizer: Optimizer) -> None:
        """A subclass may have reduced its gradients in its own step."""
        if optimizer is self._reducing:
            self._reducing = None
            self._stepped_with[-1] = self._gradients_of(optimizer)

    def _gradients_of(self, optimizer: Optimizer) -> SteppedWith:
        found: defaultdict[str, tuple[int, ...]] = defaultdict(tuple)
        for parameter in parameters_in(optimizer):
            name = self._names.get(id(parameter))
            if name is not None and not isinstance(parameter, DTensor):
                found[name] = _nonzero(parameter.grad)
        return SteppedWith(self._rank, self._step, tuple(found.items()))


def _nonzero(gradient: Tensor | None) -> tuple[int, ...]:
    return () if gradient is None else tuple(dense(gradient).reshape(-1).nonzero()[:, 0].tolist())


def _starts(parameters: Iterable[Tensor]) -> Iterator[int]:
    start = 0
    for parameter in parameters:
        yield start
        start += parameter.numel()
