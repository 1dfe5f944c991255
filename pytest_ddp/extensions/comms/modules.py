"""A model's modules: their names, the begins of their passes, DDP's buckets."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from pytest_ddp.extensions.comms.records import Moment

_WRAPPED = frozenset({"_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"})
"""Attributes of FSDP's, the compiler's and the checkpoint's wrappers: no part of a name."""


def is_in_backward() -> bool:
    """Whether this thread runs a backward pass of autograd."""
    return torch._C._current_graph_task_id() != -1


def _name(module: torch.nn.Module, name: str, found: dict[int, str]) -> None:
    """Find the names of a module and those in it, by ``id``, as they are without wrappers."""
    if id(module) not in found:
        found[id(module)] = name
        for child, inner in module.named_children():
            wraps = child in _WRAPPED or (
                child == "module" and isinstance(module, DistributedDataParallel)
            )
            _name(inner, name if wraps else f"{name}.{child}".lstrip("."), found)


class _Hook:
    """A hook of one module.

    A copy of the module, or a pickle of it, has one that does nothing.
    """

    def __init__(
        self, module: torch.nn.Module, call: Callable[[torch.nn.Module, Any], None]
    ) -> None:
        self._call = partial(call, module)

    def __call__(self, _module: Any, _inputs: Any, output: Any = None) -> None:
        if not torch.compiler.is_compiling():
            self._call(output)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (_no_hook,)


def _no_hook(*_: Any) -> None:
    """Do nothing, in place of a hook."""


class Modules:
    """What hooks on a model's modules see while a block is open.

    A tensor hook on a module's output sees the begin of its backward: a backward hook of a module
    would change the graph. In compiled code hooks do nothing.

    A forward that runs in a backward is torch's checkpoint computing activations anew: it begins no
    pass of its own.
    """

    def __init__(self, model: torch.nn.Module | None, note: Callable[[Moment], None]) -> None:
        self._model = model
        self._names: dict[int, str] = {}
        """Names of the model's modules by ``id``; the model's own is empty."""
        if model is not None:
            _name(model, "", self._names)
        self._note = note
        self._handles: list[Any] = []
        self._last_output: Callable[[], torch.Tensor | None] = lambda: None
        self._buckets: list[tuple[int, tuple[str, ...]]] = []
        self.steps = 0
        """Forward passes of the model that have begun."""
        self.in_backward: str | None = None
        """The module whose backward began last."""

    def attach(self) -> None:
        if self._model is None:
            return
        for module in self._model.modules():
            if isinstance(module, torch.jit.ScriptModule):  # it takes no such hooks
                continue
            if module is self._model:
                # Before the hooks of FSDP, which gather the parameters of this step.
                count = _Hook(module, self._begin_step)
                self._handles.append(module.register_forward_pre_hook(count, prepend=True))
            self._handles += (
                module.register_forward_pre_hook(_Hook(module, self._before)),
                module.register_forward_hook(_Hook(module, self._after)),
            )

    def detach(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def name(self, module: Any) -> str | None:
        """A module's name; its type's where it is none of the model's."""
        if module is None:
            return None
        return self._names.get(id(module), f"<{type(module).__name__}>")

    def take_bucket(self, elements: int, dtype: torch.dtype) -> tuple[str, ...] | None:
        """The parameters of DDP's next bucket, if it has so many elements.

        A communication hook may have compressed it. What ``find_unused_parameters`` reduces beside
        the buckets are integers.
        """
        if not self._buckets or self._buckets[0][0] != elements or not dtype.is_floating_point:
            return None
        return self._buckets.pop(0)[1]

    def _begin_step(self, _module: torch.nn.Module, _output: None) -> None:
        self.steps += not is_in_backward()

    def _before(self, module: torch.nn.Module, _output: None) -> None:
        if is_in_backward():
            return
        self.in_backward = None
        self._note(Moment("forward", self._names[id(module)], self.steps))

    def _after(self, module: torch.nn.Module, output: Any) -> None:
        # Any: register_hook has no types.
        tensor: Any = next((t for t in _tensors(output) if t.requires_grad), None)
        if tensor is None:
            return
        if isinstance(module, DistributedDataParallel):
            self._buckets = list(_buckets(module, self._names))
        # The innermost module comes first, and an outer one may return the same tensor.
        innermost = tensor is not self._last_output()
        self._last_output = weakref.ref(tensor)
        tensor.register_hook(self._backward(self._names[id(module)], innermost=innermost))

    def _backward(self, name: str, *, innermost: bool) -> Callable[[torch.Tensor], None]:
        def hook(_gradient: torch.Tensor) -> None:
            if innermost:
                self.in_backward = name
            self._note(Moment("backward", name, self.steps))

        return hook


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _buckets(
    model: DistributedDataParallel, modules: dict[int, str]
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Elements and parameters of each bucket, in the order in which they are reduced."""
    names = {
        id(parameter): f"{modules.get(id(module), '')}.{name}".lstrip(".")
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
    }
    for bucket in model.reducer._get_zeros_like_grad_buckets():
        found = tuple(names.get(id(parameter), "?") for parameter in bucket.parameters())
        yield bucket.buffer().numel(), found
