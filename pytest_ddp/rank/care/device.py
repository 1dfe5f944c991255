"""Whether a test has broken the GPU of its rank for those after it."""

from __future__ import annotations

import torch

from pytest_ddp.wire.protocol import Left


def broken() -> tuple[Left, ...]:
    """What to tell of a GPU that only answers with an error; nothing on the CPU.

    An illegal memory access or a device-side assert spoils the CUDA context of the process for
    good: right tests would fail after it. The stream is asked and not waited for, since a
    collective that a peer has not joined may keep it busy for ever; so the error of a kernel that
    still runs is not seen.

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
