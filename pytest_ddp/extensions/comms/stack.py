"""What the stack of the thread that communicates says of an operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.modules import module as module_file

from pytest_ddp.extensions.comms.records import OBJECTS
from pytest_ddp.rank.operations import kernels, stream
from pytest_ddp.rank.operations.operation import Site, new_named
from pytest_ddp.rank.operations.origins import user_frame_of
from pytest_ddp.system.stdlib import os

_TORCH = str(torch.__file__).rpartition("/")[0] + "/"
_DISTRIBUTED = _TORCH + "distributed/"
_C10D = str(dist.distributed_c10d.__file__)
_MODULE = str(module_file.__file__)
_HOOKS = str(default_hooks.__file__)
_OPS = _TORCH + "_ops.py"
_FUNCTIONAL = {
    *(_OPS, _TORCH + "_library/autograd.py", str(kernels.__file__), str(stream.__file__)),
    _DISTRIBUTED + "_functional_collectives.py",
}
"""Files between a functional collective and its caller; those of the stream announce it."""
_WAITS_FOR = {"isend": "send", "irecv": "recv"}
"""Functions of torch that others call and wait for."""


class Branch(NamedTuple):
    """A branch of torch's own Python that communicates otherwise on a CPU or with gloo."""

    file: str
    """Its path in ``torch/distributed``."""
    function: str
    forms: frozenset[str]
    """What it calls there, and not on other devices."""


_INTO_TENSOR = frozenset({"all_gather_into_tensor", "all_gather_into_tensor_coalesced"})
CPU_FORMS = (
    Branch("tensor/_collective_utils.py", "shard_dim_alltoall", _INTO_TENSOR),  # all_to_all
    Branch("fsdp/_flat_param.py", "_all_gather_flat_param", frozenset({"all_gather"})),
    Branch("nn/functional.py", "forward", frozenset({"scatter"})),  # _AlltoAll's all_to_all
)
"""All branches that a test finds in torch's sources."""
_ON_CPU = {(_DISTRIBUTED + branch.file, branch.function): branch.forms for branch in CPU_FORMS}


class Context(NamedTuple):
    """What was found on a stack."""

    issuer: str
    """What has issued it: ``functional.name``, ``c++``, or Python, for which it is empty."""
    objects: str | None
    """The collective of objects that it is a part of."""
    call: tuple[object, ...]
    """What tells that call from others."""
    progress: int
    """How far that call is: it grows with each part."""
    is_waited: bool
    """Whether torch's own function waits for it."""
    cpu_forms: frozenset[str]
    """The forms that one of torch's functions calls on a CPU only."""
    issued_in: Any
    """The module in whose forward, or in whose FSDP hook, it was issued."""
    belongs_to: Any
    """The module whose FSDP parameters it serves."""
    is_bucket: bool
    """Whether DDP reduces a bucket here, if it does anything: in C++, or in a hook of torch's."""
    site: Site | None


def read(frame: FrameType | None, last: FrameType | None, *, is_python: bool) -> Context:
    """Read a stack, from the innermost frame to ``last``, if that is on it.

    ``is_python``: whether a method of ``ProcessGroup`` has called the operator.

    Locals are read of torch's own frames alone: those of a user's frame would stay alive with it.
    It takes a microsecond a frame, most of which are in files that say nothing.
    """
    issuer = "" if is_python else _issuer(frame)
    frames: list[FrameType] = []
    running = hooking = serving = objects = None
    cpu_forms: frozenset[str] = frozenset()
    call: tuple[object, ...] = ()
    progress, is_waited, is_hooked, called = 0, False, False, ""
    while frame is not None:
        frames.append(frame)
        if frame is last:
            break
        file = frame.f_code.co_filename
        if file in _TELLING:
            function = frame.f_code.co_name
            if file == _C10D:
                if function in OBJECTS:
                    objects, progress, call = function, frame.f_lasti, (function, id(frame))
                is_waited |= _WAITS_FOR.get(called) == function
                called = function
            elif file == _MODULE:
                if running is None and function == "_call_impl":
                    running = frame.f_locals["self"]
            elif file in _SHARDING:
                owner = _SHARDING[file](frame.f_locals)
                hooking = owner or hooking
                serving = serving or owner
            is_hooked |= file == _HOOKS
            cpu_forms |= _ON_CPU.get((file, function), cpu_forms)
        frame = frame.f_back
    user = user_frame_of(frames)
    if user is not None and _is_generated(user.f_code.co_filename):
        user = user_frame_of(f for f in frames if not _is_generated(f.f_code.co_filename))
    site = None if user is None else new_named(Site, (user.f_code, user.f_lineno))
    issued_in = hooking if running is None else running
    is_bucket = is_hooked or issuer == "c++"
    found = issuer, objects, call, progress, is_waited, cpu_forms, issued_in, serving
    return new_named(Context, (*found, is_bucket, site))


class Origin(NamedTuple):
    """The part of a stack between an operator and the user's code."""

    objects: str | None = None
    """The collective of objects that it is a part of."""
    batch: int = 0
    """The number in its call of ``batch_isend_irecv``, from 1; 0 for none."""
    functional: str = ""
    """Who called a functional collective, ``user`` or ``library``; empty for other operations."""
    site: Site | None = None


def origin_of(frame: FrameType | None) -> Origin:
    """Read a stack from its innermost frame to the user's: less than :func:`read`, and faster."""
    objects, batch = None, 0
    is_functional = frame is not None and frame.f_code.co_filename == _OPS
    caller = None

    def written(frame: FrameType | None) -> Iterator[FrameType]:
        nonlocal objects, batch, caller
        while frame is not None:
            file = frame.f_code.co_filename
            if file == _C10D:
                function = frame.f_code.co_name
                objects = function if function in OBJECTS else objects
                if function == "batch_isend_irecv":
                    batch = len(frame.f_locals.get("reqs", ())) + 1
            if caller is None and file not in _FUNCTIONAL:
                caller = frame
            if not _is_generated(file):
                yield frame
            frame = frame.f_back

    user = user_frame_of(written(frame))
    by = ("user" if caller is user else "library") if is_functional else ""
    site = None if user is None else Site(user.f_code, user.f_lineno)
    return Origin(objects, batch, by, site)


@cache
def _is_generated(file: str) -> bool:
    """Whether Inductor has written a file; such files are in no package."""
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return "/torchinductor" in file or (folder is not None and file.startswith(folder))


def _issuer(frame: FrameType | None) -> str:
    if frame is None or frame.f_code.co_filename != _OPS:
        return "c++"
    return "functional." + getattr(frame.f_locals.get("self"), "_opname", "").rstrip("_")


def _of_group(names: dict[str, Any]) -> Any:
    group = names.get("self") or getattr(names.get("ctx"), "param_group", None)
    return next(iter(getattr(group, "modules", ())), None)


def _of_handle(names: dict[str, Any]) -> Any:
    handle = names.get("handle") or names.get("self")
    return getattr(handle, "_fully_sharded_module", None)


_SHARDING: dict[str, Callable[[dict[str, Any]], Any]] = {
    _DISTRIBUTED + "fsdp/_fully_shard/_fsdp_param_group.py": _of_group,
    _DISTRIBUTED + "fsdp/_flat_param.py": _of_handle,
    _DISTRIBUTED + "fsdp/_runtime_utils.py": _of_handle,
}
"""Files of FSDP's, and what finds a module in a function's locals: the one with its parameters."""
_TELLING = {_C10D, _MODULE, _HOOKS, *_SHARDING, *(file for file, _ in _ON_CPU)}
"""Files in which a frame says something."""
