"""Whether a test has broken its rank's GPU for the tests after it."""

from __future__ import annotations

import torch

from pytest_ddp.wire.protocol import Left


def broken() -> tuple[Left, ...]:
    """A broken GPU, which answers every call with an error; nothing on the CPU.

    An illegal memory access or a device-side assert ruins the CUDA context of the process for good:
    correct tests would fail after it. The stream is queried without waiting for it, since a
    collective that a peer has not joined may keep it busy for ever; so the error of a kernel that
    is still running is missed.

    Source: CUDA runtime API, ``cudaStreamQuery`` and the errors after which "the process must be
    terminated and relaunched".
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ()
    try:
        torch.cuda.current_stream().query()
    except RuntimeError as error:
        first, _, _ = str(error).partition("\n")
        return (Left(f"a GPU that no longer works ({first})"),)
    return ()
