"""Monte Carlo arithmetic: rounding as another order of summation could make it, enlarged.

Worlds of one program add the same numbers in unlike orders, so that right ones differ by rounding.
How much that is at the end, only the program itself can show. Run under :class:`MonteCarloRounding`
it is disturbed where an order matters, by a random multiple of what rounding can do there (Parker,
*Monte Carlo Arithmetic*, 1997; Verificarlo, arXiv 1509.01347; TTrace, arXiv 2506.09280). The
multiple is above 1, since the few runs that one can afford must meet each rare consequence, such as
a ReLU that flips.

Each operator is of one of three kinds:

- *linear*: each element of its result is a sum of products, whose error in any order is some units
  in the last place of the same sum of absolute values (Higham, *Accuracy and Stability*, 3.1).
- *exact*: it moves, selects or compares elements, or works on each one by itself: it has no order.
- any other, softmax, norms and losses among them: its inputs are disturbed, relative to themselves.

Of operators on 16-bit numbers the results are disturbed by one unit in the last place: hardware
adds in 32 bits, and rounds once. A world with parts of a sum on several ranks rounds each part, and
parts may be far larger than the sum. So a linear operator is also disturbed by one unit of the same
sum with random signs, which is as large as a part of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

LINEAR = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "bmm", "baddbmm", "dot", "mv", "addmv", "addr", "ger", "sum", "mean"),
        *("convolution", "convolution_backward", "embedding_dense_backward"),
        *("native_layer_norm_backward", "native_group_norm_backward"),
    )
)
_IN_FIRST_ALONE = frozenset(
    {"aten::native_layer_norm_backward", "aten::native_group_norm_backward"}
)
"""Linear operators in their first argument, the gradient; the others are coefficients."""

EXACT = frozenset(
    f"aten::{name}"
    for name in (
        # copies
        *("_to_copy", "clone", "copy", "contiguous", "lift_fresh", "_pin_memory", "to_mkldnn"),
        *("_unsafe_view", "_reshape_alias", "resize", "set", "zero", "fill", "masked_fill"),
        *("empty_like", "zeros_like", "ones_like", "full_like"),
        *("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"),
        # elements of one tensor, or of several, in other places
        *("cat", "stack", "index", "index_select", "gather", "take", "embedding"),
        *("masked_select",),
        *("slice_backward", "select_backward", "diagonal_backward"),
        *("slice_scatter", "select_scatter"),
        *("constant_pad_nd", "flip", "roll", "repeat", "tril", "triu", "unfold", "expand_copy"),
        *("scatter", "index_put", "masked_scatter", "index_copy", "index_fill", "one_hot"),
        *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "im2col", "reflection_pad2d"),
        # selections
        *("max", "min", "amax", "amin", "argmax", "argmin", "topk", "sort", "median", "mode"),
        *("kthvalue", "max_pool2d_with_indices", "nonzero", "_unique2", "unique_dim", "cummax"),
        *("aminmax", "_local_scalar_dense", "equal", "isin", "searchsorted", "bucketize"),
        # random numbers and masks
        *("native_dropout", "bernoulli", "multinomial", "rand_like", "randn_like"),
        *("normal", "uniform", "random", "exponential"),
    )
)
"""Operators without a sum, beside views and those that torch itself tags as pointwise."""

_WIDER = 16.0
"""The divisor of the enlargement of rounding in 16 bits, whose eps is large by itself."""

_NOT_COMPUTING = ("c10d", "_c10d_functional", "_dtensor", "prim", "profiler")
"""Namespaces of operators that move numbers between ranks, or are not run."""


class MonteCarloRounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Disturb what is computed in a ``with`` block, as rounding in another order could.

    Its random numbers are its own: global generators are not advanced. Tensor subclasses such as
    DTensor are disturbed where they compute on plain tensors.

    Args:
        seed: of its generators. Ranks with the same seed are disturbed in the same way, as far as
            they compute the same.
        scale: the multiple of what rounding can do, for numbers of 32 and 64 bits; for those of 16
            bits a sixteenth of it.
    """

    supports_higher_order_operators = True

    def __init__(self, seed: int, scale: float = 16.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed, self._scale = seed, scale
        self._generators: dict[torch.device, torch.Generator] = {}
        self.disturbed = 0
        """How many operators were disturbed so far."""
        self._is_paused = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Disturb nothing in this block."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(map(_dispatches_itself, types)):
            return NotImplemented
        if self._is_paused or not isinstance(func, OpOverload) or is_exact(func):
            return func(*args, **kwargs)
        floats = [leaf for leaf in tree_leaves((args, kwargs)) if _is_float(leaf)]
        if not floats:
            return func(*args, **kwargs)
        self.disturbed += 1
        if func._schema.name in LINEAR and not any(map(_is_written, func._schema.arguments)):
            return self._linear(func, args, kwargs, is_narrow=any(map(_is_narrow, floats)))
        given = zip(func._schema.arguments, args, strict=False)
        args = [value if _is_written(of) else self._disturbed(value) for of, value in given]
        written = {of.name for of in func._schema.arguments if _is_written(of)}
        kwargs = {k: v if k in written else self._disturbed(v) for k, v in kwargs.items()}
        found = func(*args, **kwargs)
        # The result of an operator that writes is the tensor that it has written.
        return found if written else tree_map_only(torch.Tensor, self._narrow, found)

    def _disturbed(self, value: Any) -> Any:
        return tree_map_only(torch.Tensor, self._wide, value)

    def _linear(
        self, func: OpOverload, args: Any, kwargs: dict[str, Any], *, is_narrow: bool
    ) -> Any:
        found = func(*args, **kwargs)
        change = self._with_random_signs if is_narrow else _absolute
        if func._schema.name in _IN_FIRST_ALONE:
            other = func(change(args[0]), *args[1:], **kwargs)
        else:
            other = func(*tree_map_only(torch.Tensor, change, args), **kwargs)
        wide = found
        if is_narrow:
            wide = func(*tree_map_only(torch.Tensor, _widened, args), **kwargs)
        if isinstance(found, torch.Tensor):
            return self._moved(found, other, wide)
        return tuple(map(self._moved, found, other, wide))

    def _moved(self, found: Any, other: Any, wide: Any) -> Any:
        if not _is_float(found):
            return found
        if _is_narrow(found):
            # Some kernels add in 16 bits, and are far from what 32 bits make of a long sum.
            lost = (found - wide.to(found.dtype)) * self._random(found, -1, 2).to(found.dtype)
            parts = found.abs() + other.abs()
            return found + self._units(found, self._scale / _WIDER) * parts + lost
        return found + self._units(found, self._scale) * other.abs()

    def _with_random_signs(self, tensor: torch.Tensor) -> torch.Tensor:
        if not _is_float(tensor):
            return tensor
        return tensor * (1 - 2 * self._random(tensor, 0, 2).to(tensor.dtype))

    def _wide(self, tensor: torch.Tensor) -> torch.Tensor:
        if not _is_float(tensor) or _is_narrow(tensor):
            return tensor
        return tensor * (1 + self._units(tensor, self._scale))

    def _narrow(self, tensor: torch.Tensor) -> torch.Tensor:
        if not _is_float(tensor) or not _is_narrow(tensor):
            return tensor
        return tensor * (1 + self._units(tensor, self._scale / _WIDER))

    def _units(self, like: torch.Tensor, scale: float) -> torch.Tensor:
        """-1, 0 or 1 times the scale and the dtype's eps, for each element by chance."""
        real = like.dtype.to_real() if like.is_complex() else like.dtype
        return self._random(like, -1, 2).to(real) * (torch.finfo(like.dtype).eps * scale)

    def _random(self, like: torch.Tensor, low: int, high: int) -> torch.Tensor:
        generator = self._generators.get(like.device)
        if generator is None:
            generator = torch.Generator(like.device).manual_seed(self._seed)
            self._generators[like.device] = generator
        options = {"generator": generator, "device": like.device, "dtype": torch.int8}
        return torch.randint(low, high, like.shape, **options)  # type: ignore[call-overload, no-any-return]


def is_exact(func: OpOverload) -> bool:
    """Whether an operator's result does not depend on an order of additions."""
    name = func._schema.name
    return (
        func.namespace in _NOT_COMPUTING
        or func.is_view
        or torch.Tag.pointwise in func.tags
        or name.removesuffix("_") in EXACT
        or name.startswith("aten::_fused_")  # optimizers: element by element
        or (name.startswith("aten::_foreach_") and name != "aten::_foreach_norm")
    )


def _is_written(argument: Any) -> bool:
    """Whether an operator writes into this argument, which it must get itself."""
    info = argument.alias_info
    # The schemas of older operators for batch norm do not say that they update these.
    return (info is not None and info.is_write) or argument.name in ("running_mean", "running_var")


def _dispatches_itself(kind: Any) -> bool:
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ and kind not in (
        torch.Tensor,
        torch.nn.Parameter,
    )


def _is_float(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and (value.is_floating_point() or value.is_complex())
        and value.numel() > 0
    )


def _is_narrow(tensor: torch.Tensor) -> bool:
    return torch.finfo(tensor.dtype).bits < 32


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if _is_float(tensor) and _is_narrow(tensor) else tensor


def _absolute(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.abs() if _is_float(tensor) else tensor
