"""``ddp.across_worlds`` and ``ddp.carry``: write the reference's values, or compare with them.

All ranks of a world make the same comparisons. Each exchange depends only on what all ranks have
received before, so that all raise the same error.
"""

from __future__ import annotations

import contextlib
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from pytest_ddp import fixture
from pytest_ddp.extensions.worlds.ranks.rounding import MonteCarloRounding
from pytest_ddp.extensions.worlds.ranks.whole import Values, whole_values
from pytest_ddp.extensions.worlds.ranks.without_worlds import NO_WORLDS, attributes
from pytest_ddp.extensions.worlds.ranks.world_records import (
    Deviation,
    RankTable,
    TensorPlace,
    WorldRun,
)
from pytest_ddp.rank.equality import digest, leaves
from pytest_ddp.system.stdlib import json

_LARGEST_RECORD = 1 << 30
"""Bytes that one rank of the reference may write for a test."""
_SHOWN = 4
"""Names in an error at most."""
_OWN_SAMPLES = (
    "  If each rank has computed it from samples of its own, reduce it first:\n"
    "  sum(ddp.gather(loss.item())) / ddp.world_size"
)


_ONE_VALUE = (
    "  Ranks that hold a tensor hold the same: compare gradients after they were reduced, and\n"
    "  parameters that were broadcast or seeded."
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a comparison allows instead of measured rounding."""

    rtol: float
    atol: float


@dataclass(frozen=True, slots=True)
class HeldValue:
    """What all ranks together hold under one name of a value."""

    kind: str
    """Dtype and shape; empty for None."""
    owner: int
    """The lowest rank that holds the value."""


class AcrossWorlds:
    """Comparisons of a world with the reference; one object for all tests of a rank."""

    def __init__(self, rank: int, gather: Callable[[Any], list[Any]]) -> None:
        self._rank, self._gather = rank, gather
        self._run: WorldRun | None = None
        self.rounding: MonteCarloRounding | None = None

    def begin(self, run: WorldRun) -> None:
        """A test begins."""
        self._run = run
        self._dtype = torch.get_default_dtype()
        self._is_late = False
        """Whether the test's call has passed."""
        self._missing = ""
        self._used: dict[str, int] = {}
        self._index: list[dict[str, Any]] = []
        """What was compared in this run."""
        self._written = 0
        self._measured = RankTable({}, {}, [], [], [])
        self._reference: dict[tuple[str, int], tuple[int, dict[str, str]]] = {}
        """The place in the reference's order and the kinds, by name and number."""
        self._late: set[tuple[str, int]] = set()
        """What the reference has compared after its call."""
        Path(run.folder, "tables").mkdir(parents=True, exist_ok=True)
        self.rounding = None if run.seed is None else MonteCarloRounding(run.seed, run.scale)
        if not run.records:
            rows = json.loads(Path(run.folder, run.compares, "index.json").read_text())
            self._reference = {
                (row["name"], row["number"]): (place, row["kinds"])
                for place, row in enumerate(rows)
            }
            self._late = {(row["name"], row["number"]) for row in rows if row["is_late"]}

    def arithmetic(self) -> contextlib.AbstractContextManager[object]:
        """The arithmetic of this run: with rounding, or in float64."""
        if self._run is not None and self._run.is_wide:
            return _default_dtype(torch.float64)
        return self.rounding or contextlib.nullcontext()

    def plain_arithmetic(self) -> contextlib.AbstractContextManager[object]:
        """Plain arithmetic within that of the run: what is made here is for other runs, too."""
        if self._run is not None and self._run.is_wide:
            return _default_dtype(self._dtype)
        return self.rounding.paused() if self.rounding else contextlib.nullcontext()

    # ------------------------------------------------------------------ the user's

    def assert_close(
        self,
        name: str,
        value: Any,
        *,
        rtol: float | None = None,
        atol: float | None = None,
        exact: bool = False,
    ) -> None:
        """Fail unless ``value`` is what the reference world had under this name.

        Every rank of the world calls it. What several ranks hold must be equal among them, to the
        last bit; what only some hold, as stages of a pipeline do, is taken from them. A name that
        is used several times is a sequence.

        Without limits, a tensor may differ by four times as much as rounding in another order can
        make of it, which further runs of the reference measure, or by 64 eps of its largest value.
        Integers and booleans are compared exactly; NaN equals NaN.

        Args:
            name: of the value, the same in all worlds.
            value: a module (its parameters), a tensor, a number, or a dict of these. DTensors are
                compared as whole tensors. None is a gradient that there is not; it equals zero.
            rtol: relative to the reference's element; with ``atol``.
            atol: absolute; both replace the measured limit.
            exact: compare to the last bit.

        Raises:
            AssertionError: it differs, or has other names, shapes or dtypes; or ranks differ.
            TypeError: the value contains something else.
            ValueError: the limits contradict each other.
        """
        __tracebackhide__ = True
        if self._run is None:
            raise RuntimeError(f"ddp.across_worlds.assert_close: {NO_WORLDS}")
        limits = _limits(rtol, atol, exact=exact)
        undisturbed = self.rounding.paused() if self.rounding else contextlib.nullcontext()
        with torch.no_grad(), undisturbed:
            self._compare(self._run, name, value, limits)

    def _compare(self, run: WorldRun, name: str, value: Any, limits: Limits | None) -> None:
        __tracebackhide__ = True
        values = whole_values(value)
        number = self._used.get(name, 0)
        self._used[name] = number + 1
        entries = self._entries(run, name, values)
        kinds_here = {key: entry.kind for key, entry in entries.items()}
        self._index.append(
            {"name": name, "number": number, "kinds": kinds_here, "is_late": self._is_late}
        )
        self._note_chancy(value)
        mine = {key: values[key] for key, e in entries.items() if e.owner == self._rank}
        if run.records:
            self._write(run, mine)
            return
        place, kinds = self._of_reference(run, name, number, entries)
        if limits is not None and run.only_measures:
            return
        far = dict(self._distances(run, TensorPlace(name, number, ""), place, mine, limits))
        if limits is not None or not all(map(_is_float_kind, kinds.values())):
            self._fail_beyond(run, name, far, limits)
        for failed_name, failed_number, text in run.failures:
            if (failed_name, failed_number) == (name, number):
                raise AssertionError(text)

    def call_ended(self) -> str:
        """The test's call has passed: what only the reference has compared until there."""
        self._is_late = True
        self._missing = self._lacks([key for key in self._reference if key not in self._late])
        return self._missing

    def teardown_ended(self) -> str:
        """The test has ended: what only the reference has compared in all of it; nothing if it has
        not passed.
        """
        return self._lacks([*self._reference]) if self._is_late and not self._missing else ""

    def _lacks(self, compared: list[tuple[str, int]]) -> str:
        run = self._run
        if run is None:
            return ""
        wanted: dict[str, int] = {}
        for name, number in compared:
            wanted[name] = max(wanted.get(name, 0), number + 1)
        for name, count in wanted.items():
            if (done := self._used.get(name, 0)) < count:
                return (
                    f"world {run.world} has compared {name!r} {_times(done)},\n"
                    f"  and the reference world {run.reference} {_times(count)}"
                )
        return ""

    def finish(self) -> None:
        """The test is over: write what it has measured, and what the reference has compared."""
        run, self._run = self._run, None
        if run is None:
            return
        path = Path(run.folder, "tables", f"{run.name}-{self._rank}.json")
        path.write_text(json.dumps(self._measured.as_json()))
        if run.records and self._rank == 0:
            folder = Path(run.folder, run.records)
            folder.mkdir(exist_ok=True)
            (folder / "index.json").write_text(json.dumps(self._index))

    # ------------------------------------------------------------------ between ranks

    def _entries(self, run: WorldRun, name: str, values: Values) -> dict[str, HeldValue]:
        """What the ranks hold together, in the order of the lowest rank with a name."""
        __tracebackhide__ = True
        mine = {
            key: None if held is None else (_kind(held), digest(leaves(held)), held.nbytes)
            for key, held in values.items()
        }
        held = self._gather((self._written, mine))
        found: dict[str, HeldValue] = {}
        first: dict[str, Any] = {}
        for rank, (_, table) in enumerate(held):
            for key, seen in table.items():
                if seen is None:
                    found.setdefault(key, HeldValue("", rank))
                elif not found.get(key, HeldValue("", 0)).kind:
                    found[key], first[key] = HeldValue(seen[0], rank), seen
                elif first[key] != seen and not run.only_measures:
                    self._fail_unlike(name, key, found[key].owner, rank, values)
        written = [before for before, _ in held]
        for key, (*_, size) in first.items():
            written[found[key].owner] += size
        if run.records and max(written) > _LARGEST_RECORD:
            raise AssertionError(
                f"{name}: the reference's values are more than 1 GiB on a rank;\n"
                "  compare fewer of them, or the last ones alone"
            )
        return found

    def _fail_unlike(self, name: str, key: str, one: int, other: int, values: Values) -> NoReturn:
        __tracebackhide__ = True
        held = values.get(key)
        texts = self._gather("none" if held is None else _brief(held))
        is_number = held is None or held.numel() == 1
        where = f"{name}: {key}" if key else name
        raise AssertionError(
            f"{where} differs between ranks {one} and {other} of this world: {texts[one]}, "
            f"{texts[other]}\n"
            f"{_OWN_SAMPLES if is_number else _ONE_VALUE}"
        )

    # ------------------------------------------------------------------ with the reference

    def _write(self, run: WorldRun, mine: Values) -> None:
        folder = Path(run.folder, run.records)
        folder.mkdir(exist_ok=True)
        self._note_kinds(mine)
        kept = {key: tensor.cpu() for key, tensor in mine.items() if tensor is not None}
        self._written += sum(tensor.nbytes for tensor in kept.values())
        if kept:
            torch.save(kept, folder / f"{len(self._index) - 1}-{self._rank}.pt")

    def _of_reference(
        self, run: WorldRun, name: str, number: int, entries: dict[str, HeldValue]
    ) -> tuple[int, dict[str, str]]:
        __tracebackhide__ = True
        known = self._reference.get((name, number))
        if known is None:
            had = sum(other == name for other, _ in self._reference)
            raise AssertionError(
                f"world {run.world} compares {name!r} for the {_ordinal(number + 1)} time,\n"
                f"  and the reference world {run.reference} has compared it {_times(had)}"
            )
        place, kinds = known
        if problem := _unlike(run, {k: e.kind for k, e in entries.items()}, kinds):
            raise AssertionError(f"{name}: {problem}")
        return place, kinds

    def _distances(
        self, run: WorldRun, of: TensorPlace, file: int, mine: Values, limits: Limits | None
    ) -> Iterator[tuple[str, Deviation]]:
        """What is beyond the user's limits, or an unequal integer; measure the others."""
        self._note_kinds(mine)
        disturbed = 0 if self.rounding is None else self.rounding.disturbed
        self._measured.disturbed[of.name, of.number] = disturbed
        if not mine:  # another rank compares all of it
            return
        theirs: dict[str, torch.Tensor] = {}
        for path in Path(run.folder, run.compares).glob(f"{file}-*.pt"):
            theirs |= torch.load(path, weights_only=True, mmap=True)
        for key, held in mine.items():
            wanted = theirs.get(key)
            tensor = wanted if held is None else held.cpu()
            if tensor is None:
                continue
            found = torch.zeros_like(tensor) if held is None else tensor
            other = torch.zeros_like(tensor) if wanted is None else wanted
            is_float = tensor.is_floating_point() or tensor.is_complex()
            far = distance(found, other, limits if is_float else Limits(0.0, 0.0))
            if limits is None and is_float:
                self._measured.table[of._replace(tensor=key)] = far
            elif far.error > 0 and not run.only_measures:
                yield key, far

    def _fail_beyond(
        self, run: WorldRun, name: str, far: dict[str, Deviation], limits: Limits | None
    ) -> None:
        __tracebackhide__ = True
        found = {key: one for table in self._gather(far) for key, one in table.items()}
        if not found:
            return
        key = max(found, key=lambda key: found[key].error)
        worst = found[key]
        asked = "exactly" if limits is None or not (limits.rtol or limits.atol) else "within limits"
        where = f"{name}: {key}" if key else name
        by = (
            f"by {worst.error:.3g}"
            if math.isfinite(worst.error)
            else "in values that are not finite"
        )
        raise AssertionError(
            f"{where} is not {asked} that of world {run.reference}: it differs {by},\n"
            f"  and the largest value is {worst.largest:.3g}; {len(found)} of "
            f"{len(self._index[-1]['kinds'])} tensors differ"
        )

    # ------------------------------------------------------------------ for the texts

    def _note_kinds(self, mine: Values) -> None:
        held = [tensor for tensor in mine.values() if tensor is not None]
        held = [tensor for tensor in held if tensor.is_floating_point() or tensor.is_complex()]
        for known, found in (
            (self._measured.dtypes, {str(tensor.dtype) for tensor in held}),
            (self._measured.devices, {tensor.device.type for tensor in held}),
        ):
            known.extend(sorted(found - {*known}))

    def _note_chancy(self, value: Any) -> None:
        for name, module in value.named_modules() if isinstance(value, torch.nn.Module) else ():
            if not module.training:
                continue
            drops = isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0
            if drops or isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                text = f"{name} ({type(module).__name__})"
                if text not in self._measured.chancy:
                    self._measured.chancy.append(text)


def begin(across: AcrossWorlds, data: Mapping[str, Any]) -> None:
    """A test begins: set what it finds in the ``ddp`` fixture.

    Args:
        across: of the rank.
        data: a :class:`WorldRun` with the folder ``carry``.
    """
    fields = dict(data)
    ddp: Any = fixture.current()
    ddp.carry = Path(fields.pop("carry"))
    run = WorldRun.from_json(fields)
    ddp.world, ddp.across_worlds = run.world, across
    across.begin(run)


def leave() -> None:
    """A test without worlds begins."""
    for name, value in attributes().items():
        setattr(fixture.current(), name, value)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def distance(found: torch.Tensor, wanted: torch.Tensor, limits: Limits | None) -> Deviation:
    """How far a tensor is from the reference's, where it is further than the limits allow.

    Both have the same shape and dtype. Differences are taken in float64.
    """
    eps = torch.finfo(found.dtype).eps if found.is_floating_point() or found.is_complex() else 0.0
    if not found.numel():
        return Deviation(0.0, 0.0, eps)
    kind = torch.complex128 if found.is_complex() else torch.float64
    one, other = found.to(kind), wanted.to(kind)
    same = (one == other) | (one.isnan() & other.isnan())
    error = (one - other).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf)
    if limits is not None:
        allowed = limits.atol + limits.rtol * other.abs()
        error = error.masked_fill(error <= allowed, 0.0)
    finite = other.abs().nan_to_num(nan=0.0, posinf=0.0)
    return Deviation(error.max().item(), finite.max().item(), eps)


def _limits(rtol: float | None, atol: float | None, *, exact: bool) -> Limits | None:
    if (rtol is None) != (atol is None):
        raise ValueError("assert_close: give both rtol and atol, or neither")
    if exact and rtol is not None:
        raise ValueError("assert_close: exact=True has no rtol and atol")
    if exact:
        return Limits(0.0, 0.0)
    return None if rtol is None or atol is None else Limits(rtol, atol)


def _unlike(run: WorldRun, mine: dict[str, str], theirs: dict[str, str]) -> str:
    """How names, shapes and dtypes differ from the reference's; empty if they do not."""
    lacking = [
        f"{there} has no {_listed(sorted(kinds))}"
        for there, kinds in (
            (f"world {run.world}", theirs.keys() - mine.keys()),
            (f"the reference world {run.reference}", mine.keys() - theirs.keys()),
        )
        if kinds
    ]
    if lacking:
        return ";\n  ".join(lacking)
    unlike = [key for key in mine if mine[key] and theirs[key] and mine[key] != theirs[key]]
    if not unlike:
        return ""
    shown = [f"{key or 'the value'} is {mine[key]}, not {theirs[key]}" for key in unlike]
    return f"unlike the reference world {run.reference}:\n  {_listed(shown)}"


def _listed(names: list[str]) -> str:
    """The first ones, in lines that fit."""
    more = len(names) - _SHOWN
    text = ", ".join([*names[:_SHOWN], *([f"and {more} more"] if more > 0 else [])])
    lines = textwrap.wrap(text, 80, break_long_words=False, break_on_hyphens=False)
    return "\n  ".join(lines)


def _is_float_kind(kind: str) -> bool:
    return not kind or kind.startswith(("float", "bfloat", "complex"))


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _brief(tensor: torch.Tensor) -> str:
    if tensor.numel() == 1:
        return f"{tensor.item():.8g}"
    norm = torch.linalg.vector_norm(tensor.double() if not tensor.is_complex() else tensor)
    return f"{_kind(tensor)} with norm {norm.item():.8g}"


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
