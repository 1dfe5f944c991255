"""What a launched rank does for a TrainStep subject: make the model, step, and look."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo import OptimizedModule
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from ddp_conformance.launched.process.optimizing import callers, digest, parameters_in
from ddp_conformance.launched.process.saving import bare_name
from ddp_conformance.model.history import (
    Buffers,
    Decided,
    Gradients,
    OneProcessEnds,
    Overflowed,
    Overwrote,
    Pass,
    State,
    Statistics,
    Taken,
    UnlikeOneProcess,
    UpdateUnknown,
    Wrapped,
)
from ddp_conformance.model.judge import WRAPPING, after_step
from ddp_conformance.model.kept_records import KeptRecords
from ddp_conformance.model.optimizer_calls import OptimizerCalls
from ddp_conformance.model.subjects import Trainee
from ddp_conformance.model.taking_over import (
    Call,
    Followed,
    Snapshot,
    dense,
    full,
    named,
    parameters_of,
    snapshot_of,
)

STATISTICS = ("running_mean", "running_var")
"""Names of the buffers in torch's normalisations, and in those of other libraries."""

_kept: list[Any] = []


def keep(trainee: Trainee) -> None:
    """Keep a trainee's model for good: freed after its group, DDP's reducer can hang (see the
    watch)."""
    _kept.append(trainee)


def demand_no_fsdp1(model: nn.Module) -> None:
    """Raise ``TypeError`` for a model under FSDP1."""
    if any(isinstance(part, FullyShardedDataParallel) for part in model.modules()):
        raise TypeError("a TrainStep cannot use FSDP1, because its gradients are flat; use FSDP2")


def inner(model: nn.Module) -> nn.Module:
    """The module in a wrapper that hands the forward pass on to it."""
    wrapped = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
    wrappers = DistributedDataParallel | OptimizedModule
    return inner(wrapped) if isinstance(model, wrappers) and wrapped is not None else model


AtCall: TypeAlias = Callable[[Call, Optimizer, dict[str, Tensor | None], frozenset[str]], None]


class StepObserver:
    """Records what the model does in one run."""

    def __init__(
        self,
        model: nn.Module,
        rank: int,
        records: KeptRecords,
        at_call: AtCall,
        *,
        alone: bool = False,
    ) -> None:
        """
        Args:
            at_call: called as an optimizer is about to step, with the number of its call in the
                step, the gradients, and the names of its own parameters.
        """
        self._at_call = at_call
        self._model = model
        self._rank = rank
        self._records = records
        self._alone = alone
        self._parameters = [*named(model)]
        self._unfrozen: set[str] = set()
        """The names of those that had ``requires_grad`` at any time."""
        self._names = {id(parameter): name for name, parameter in self._parameters}
        self._used: set[str] = set()
        self._passes = 0
        self._over = False
        self._number = 0
        self._stepped = False
        self._norm: float | None = None
        self._calls = 0
        """The number of calls of optimizers in this step."""
        self.optimizers: list[Optimizer] = []
        """Optimizers in the order in which they first stepped."""
        self._after_backward: list[tuple[str, Tensor | None]] = []
        self._named_unlike: set[str] = set()
        self._reducing: Optimizer | None = None
        """The optimizer whose own gradients may still change in its step."""
        self._given = ""
        """The digest of the gradients with which it was called."""
        self._collectives_before = 0
        self._overflowed = False
        self._end_of_scaling = after_scaled_steps(self._note_overflow)
        self._optimizer_calls = OptimizerCalls(self._about_to_step, self._goes_on)
        self._end_hook = register_optimizer_step_post_hook(self._has_stepped)

    def close(self) -> None:
        """Stop watching optimizer steps."""
        self._optimizer_calls.close()
        self._end_hook.remove()
        self._end_of_scaling()

    @property
    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        """Parameters that are trained, or were: a layer may be frozen at first, or later."""
        self._unfrozen.update(name for name, p in self._parameters if p.requires_grad)
        return [(name, p) for name, p in self._parameters if name in self._unfrozen]

    def run(self, trainee: Trainee, steps: int, followed: Followed) -> None:
        """Make all steps of this rank, and keep what one process takes over."""
        static = isinstance(self._model, DistributedDataParallel) and self._model.static_graph
        names = tuple(name for name, _ in self._trained)
        self._records.add(Wrapped(self._rank, names, bool(static), self._sharded()))
        self._follow_use()
        self._follow_writes()
        around_backward(self._backward)
        self._record_state(WRAPPING)
        for number in range(steps):
            if len(followed.before) == number:
                followed.before += self._snapshot()
            self.step(trainee, number)
            followed.after.append(self._record_state(after_step(number + 1)))
            # One use after each step: an evaluation can put right what is saved after it.
            if number == 0 and trainee.evaluate is not None:
                self._record_evaluation(trainee.evaluate)
            if number == 1 and trainee.checkpoint is not None:
                self._record_buffers("checkpoint", trainee.checkpoint())
        self._over = True

    def _snapshot(self) -> Iterator[Snapshot]:
        """Empty if an optimizer does not give its state, as one that ZeRO shards."""
        try:
            yield snapshot_of(self._model, self._names, self.optimizers)
        except Exception:  # from the optimizer's code
            self._records.add(OneProcessEnds(self._rank, self._number + 1))

    def step(self, trainee: Trainee, number: int) -> None:
        """Make a step, and record its decisions."""
        self._number, self._passes, self._calls = number + 1, 0, 0
        self._stepped, self._norm, self._after_backward = False, None, []
        self._overflowed = False
        before = self._contents()
        found = trainee.step(number)
        if not self._stepped and self._contents() != before:
            self._stepped = True
            self._unknown(
                "changes its parameters, and steps no torch.optim.Optimizer that has them"
            )
            self._record_gradients_of_hand_made_step()
        if self._overflowed:
            self._records.add(Overflowed(self._rank, self._number, self._alone))
        made = found if isinstance(found, Mapping) else {}
        values = tuple((str(name), float(value)) for name, value in made.items())
        self._records.add(
            Decided(self._rank, self._number, self._alone, self._stepped, values, self._norm)
        )
        if number == 0:
            self._record_statistics()

    def _contents(self) -> str:
        return digest([parameter for _, parameter in self._trained])

    def _record_gradients_of_hand_made_step(self) -> None:
        """Twice: gradients that are reduced by hand are not right yet after the backward pass."""
        self._record_gradients(self._after_backward, "after backward")
        left = [(name, p.grad) for name, p in self._trained]
        if any(gradient is not None and bool(dense(gradient).any()) for _, gradient in left):
            self._record_gradients(left, "in the end")

    def _look_for_unlike(self) -> None:
        """Record modules by which one process rightly differs: batch statistics and dropout."""
        for name, module in self._model.named_modules():
            kind = _unlike_one_process(module)
            if kind is not None and kind not in self._named_unlike:
                self._named_unlike.add(kind)
                self._records.add(UnlikeOneProcess(self._rank, bare_name(name), kind))

    def _record_statistics(self) -> None:
        found = tuple(
            (bare_name(name), _values(buffer))
            for name, buffer in self._model.named_buffers()
            if name.rpartition(".")[2] in STATISTICS
        )
        self._records.add(Statistics(self._rank, self._alone, found))

    def _sharded(self) -> bool:
        return any(isinstance(parameter, DTensor) for _, parameter in self._trained)

    def _record_state(self, moment: str) -> dict[str, Tensor]:
        """Returns a copy of the parameters."""
        content = parameters_of(self._model)
        parameters = tuple((name, digest([tensor])) for name, tensor in content.items())
        buffers = tuple(
            (bare_name(name), digest([buffer])) for name, buffer in self._model.named_buffers()
        )
        self._records.add(State(self._rank, moment, parameters, buffers))
        return content

    # ------------------------------------------------------------------ buffers

    def _record_evaluation(self, evaluate: Callable[[], object]) -> None:
        """Record in the first forward pass, below the wrapper: DDP sends buffers when it comes to
        it.
        """
        passes: list[object] = []

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def enter(*_: Any) -> None:
            if not passes:
                self._record_buffers("evaluation", {})
            passes.append(None)

        handle = inner(self._model).register_forward_pre_hook(enter)
        evaluate()
        handle.remove()

    def _record_buffers(
        self, use: Literal["evaluation", "checkpoint"], saved: Mapping[str, Any]
    ) -> None:
        """Record the buffers of the model, or what is saved in their place."""
        own = {bare_name(name): buffer for name, buffer in self._model.named_buffers()}
        kept = {bare_name(name): value for name, value in saved.items()}
        contents = {name: digest([kept.get(name, buffer)]) for name, buffer in own.items()}
        self._records.add(Buffers(self._rank, use, self._number, tuple(contents.items())))

    # ------------------------------------------------------------------ forward

    def _follow_writes(self) -> None:
        """Record parameters that a forward pass changes; not under FSDP, which replaces them."""
        if self._sharded():
            return
        before: list[str] = []

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def enter(*_: Any) -> None:
            before[:] = [digest([parameter]) for _, parameter in self._trained]

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def leave(*_: Any) -> None:
            pairs = zip(self._trained, before, strict=True)
            changed = tuple(name for (name, p), old in pairs if digest([p]) != old)
            if changed:
                self._records.add(Overwrote(self._rank, self._number, changed))

        self._model.register_forward_pre_hook(enter)
        self._model.register_forward_hook(leave)

    # ------------------------------------------------------------------ backward

    def _follow_use(self) -> None:
        for name, parameter in self._trained:
            if isinstance(parameter, DTensor):
                self._used.add(name)  # gathered copies are what a backward pass reaches
            else:
                tensor: Any = parameter
                tensor.register_hook(lambda _, name=name: self._used.add(name))

    def _backward(self, run: Callable[[], Any]) -> Any:
        if self._over:
            return run()
        sharded = {name for name, p in self._trained if isinstance(p, DTensor)}
        self._used.intersection_update(sharded)
        begun = _collectives()
        result = run()
        self._note_gradients()
        self._look_for_unlike()
        gradients = [p.grad for _, p in self._trained if p.grad is not None]
        self._records.add(
            Pass(
                self._rank,
                self._number,
                self._passes,
                tuple(sorted(self._used)),
                _collectives() - begun,
                digest(gradients),
            )
        )
        self._passes += 1
        return result

    def _note_gradients(self) -> None:
        self._after_backward = [
            (name, None if p.grad is None else p.grad.clone()) for name, p in self._trained
        ]

    def measure(self, run: Callable[[], Any]) -> Any:
        """Take the norm of what a backward pass of a single process left."""
        result = run()
        self._note_gradients()
        gradients = [dense(p.grad).double() for _, p in self._trained if p.grad is not None]
        self._norm = nn.utils.get_total_norm(gradients).item()
        return result

    # ------------------------------------------------------------------ step

    def _note_overflow(self, optimizer: Optimizer) -> None:
        self._overflowed = self._overflowed or self._trains(optimizer)

    def _about_to_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not self._trains(optimizer) or any(map(self._trains, callers())):
            return None
        self._stepped = True
        if not any(optimizer is known for known in self.optimizers):
            self.optimizers.append(optimizer)
        if kwargs.get("closure") is not None:
            return args, {**kwargs, "closure": self._recording(optimizer, kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._recording(optimizer, args[1]), *args[2:]), kwargs
        # One process has the ranks' gradients at the last moment: its own are to be recorded.
        gives = not self._alone or not self._optimizer_calls.goes_on(optimizer)
        self._called(optimizer, gives=gives)
        self._reducing, self._given = optimizer, self._own_gradients(optimizer)
        self._collectives_before = _collectives()
        return None

    def _goes_on(self, optimizer: Optimizer) -> None:
        """Take the gradients again that a subclass may have reduced, with those it steps."""
        if optimizer is self._reducing:
            self._reducing = None
            self._calls -= 1
            self._called(optimizer, "in the step")

    def _has_stepped(self, optimizer: Optimizer, *_: Any) -> None:
        """Record what an optimizer that reduces by itself has left: they are its gradients."""
        if optimizer is not self._reducing or any(one is optimizer for one in callers()):
            return
        self._reducing = None
        reduced = _collectives() > self._collectives_before
        left = [(name, p.grad) for name, p in self._trained]
        if self._alone or not reduced or self._own_gradients(optimizer) == self._given:
            return
        if not any(isinstance(p, DTensor) for _, p in self._trained):
            self._record_gradients(left, "in the end", self._owned(optimizer))
        self._unknown(
            "has an optimizer whose step() reduces gradients: reduce them before, in a hook of the "
            "optimizer, or in a subclass that then calls super().step()"
        )

    def _own_gradients(self, optimizer: Optimizer) -> str:
        return digest([p.grad for p in parameters_in(optimizer) if p.grad is not None])

    def _called(
        self, optimizer: Optimizer, taken: Taken = "at the step", *, gives: bool = True
    ) -> None:
        found = {name: None if p.grad is None else full(p.grad) for name, p in self._trained}
        owned = self._owned(optimizer)
        self._record_gradients([*found.items()], taken, owned)
        if getattr(optimizer, "grad_scale", None) is not None:
            self._unknown("gives its optimizer a gradient scaler's scale")
        if gives:
            self._at_call((self._number, self._calls), optimizer, found, frozenset(owned))
        self._calls += 1

    def _unknown(self, why: str) -> None:
        self._records.add(UpdateUnknown(self._rank, self._number, why))

    def _recording(self, optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The step's closure, with a record of the gradients of its first call.

        Only of the first: the last bit may decide how often LBFGS calls it again.
        """
        calls = itertools.count()

        @wraps(closure)
        def recorded() -> Any:
            result = closure()
            number = next(calls)
            if number == 0:
                self._called(optimizer)
            elif number == 1:
                self._unknown("has an optimizer that calls its closure more than once, as LBFGS")
            return result

        return recorded

    def _record_gradients(
        self,
        found: Sequence[tuple[str, Tensor | None]],
        taken: Taken = "at the step",
        owned: Sequence[str] = (),
    ) -> None:
        values = tuple((name, _values(gradient)) for name, gradient in found)
        self._records.add(
            Gradients(self._rank, self._number, self._alone, values, taken, tuple(owned))
        )

    def _trains(self, optimizer: Optimizer) -> bool:
        """Whether it has some of the model's parameters."""
        return bool(self._owned(optimizer))

    def _owned(self, optimizer: Optimizer) -> list[str]:
        return [self._names[id(one)] for one in parameters_in(optimizer) if id(one) in self._names]


def _unlike_one_process(module: nn.Module) -> Literal["BatchNorm", "Dropout"] | None:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        own = module.training or module.running_mean is None
        return "BatchNorm" if own and not isinstance(module, nn.SyncBatchNorm) else None
    drops = isinstance(module, nn.modules.dropout._DropoutNd) and module.training
    return "Dropout" if drops and module.p > 0 else None  # type: ignore[operator]


def _values(tensor: Tensor | None) -> tuple[float, ...]:
    return () if tensor is None else tuple(dense(full(tensor)).double().reshape(-1).tolist())


def _collectives() -> int:
    group: Any = dist.group.WORLD
    return int(group._get_sequence_number_for_group()) if dist.is_initialized() else 0


def after_scaled_steps(note: Callable[[Optimizer], None]) -> Callable[[], None]:
    """Call ``note`` with each optimizer that a scaler of torch has skip, as it found an overflow.

    Returns:
        What ends it.
    """
    scaler: Any = torch.amp.GradScaler
    original = scaler.step

    @wraps(original)
    def step(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        result = original(self, optimizer, *args, **kwargs)
        if self.is_enabled():
            found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
            if any(map(float, found.values())):
                note(optimizer)
        return result

    scaler.step = step

    def end() -> None:
        scaler.step = original

    return end


def around_backward(follow: Callable[[Callable[[], Any]], Any]) -> Callable[[], None]:
    """Call ``follow`` around each backward pass, under both names that torch starts it by.

    A pass within a pass, as reentrant checkpointing starts, is a part of it.

    Returns:
        What ends it.
    """
    originals = [(m, vars(m)["_engine_run_backward"]) for m in _STARTING_BACKWARD]
    is_inside = False
    for module, original in originals:

        @wraps(original)
        def backward(*args: Any, original: Any = original, **kwargs: Any) -> Any:
            nonlocal is_inside
            if is_inside:
                return original(*args, **kwargs)
            is_inside = True
            try:
                return follow(lambda: original(*args, **kwargs))
            finally:
                is_inside = False

        setattr(module, "_engine_run_backward", backward)  # noqa: B010 - a private name

    def end() -> None:
        for module, original in originals:
            setattr(module, "_engine_run_backward", original)  # noqa: B010 - a private name

    return end


_STARTING_BACKWARD: tuple[Any, ...] = (torch.autograd, torch.autograd.graph)
