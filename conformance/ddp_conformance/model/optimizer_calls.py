"""When an optimizer computes: after what its hooks and its class do with gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from typing import Any, TypeAlias

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddp_conformance.launched.process.optimizing import callers

Begins: TypeAlias = Callable[
    [Optimizer, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]] | None
]


class OptimizerCalls:
    """Calls functions as optimizers of this process step.

    Gradients may be reduced, unscaled or clipped by a hook of the optimizer, or in the ``step`` of
    a subclass before it calls the one that it overrides, as Horovod's does.
    """

    def __init__(self, begins: Begins, continues: Callable[[Optimizer], object]) -> None:
        """With ``begins``, which is called after all other hooks before a step, and may return
        other arguments of it; and ``continues``, called where a subclass goes on with the step that
        it overrides."""
        self._begins, self._continues = begins, continues
        self._hooks: dict[int, Any] = {}
        """By the ids of optimizers."""
        self._overridden: dict[type[Any], Any] = {}
        """The steps of classes that others override."""
        self._awaited: type[Optimizer] | None = None
        """The class of an optimizer that steps, if it is to go on with a step that it overrides."""
        self._whole: set[type[Optimizer]] = set()
        """Classes that were seen not to."""
        self._hook = register_optimizer_step_pre_hook(self._about_to_step)

    def close(self) -> None:
        """See no more steps."""
        for hook in (self._hook, *self._hooks.values()):
            hook.remove()
        for kind, step in self._overridden.items():
            kind.step = step

    def goes_on(self, optimizer: Optimizer) -> bool:
        """Whether ``continues`` will be called in the step that begins, as far as is known."""
        return type(optimizer) is self._awaited

    def _about_to_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Torch calls an optimizer's own hooks after this one, in the order in which they came."""
        if self._awaited is not None:
            self._whole.add(self._awaited)
        if id(optimizer) in self._hooks:
            self._hooks.pop(id(optimizer)).remove()
        self._hooks[id(optimizer)] = optimizer.register_step_pre_hook(self._begins)
        kinds = (kind for kind in type(optimizer).__mro__ if issubclass(kind, Optimizer))
        stepping = [kind for kind in kinds if "step" in vars(kind) and kind is not Optimizer]
        # Torch puts a wrapper of a step that a class inherits, as AdamW does, into that class.
        overridden = [k for one, k in pairwise(stepping) if _function(one) is not _function(k)]
        for kind in overridden:
            self._follow(kind)
        awaits = overridden and type(optimizer) not in self._whole
        inside = any(one is optimizer for one in callers())
        self._awaited = type(optimizer) if awaits and not inside else None

    def _follow(self, kind: Any) -> None:
        if kind in self._overridden:
            return
        step = self._overridden[kind] = kind.step

        @wraps(step)
        def followed(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if any(one is optimizer for one in callers()):
                self._awaited = None
                self._continues(optimizer)
            return step(optimizer, *args, **kwargs)

        kind.step = followed


def _function(kind: type[Optimizer]) -> object:
    """A class's own step, without what is around it."""
    return inspect.unwrap(vars(kind)["step"])
