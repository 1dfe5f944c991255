"""Runs in a Ray worker, as a copy of this module that cannot import pytest_ddp."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile

_NOT_PASSED_ON = ("PYTHONBREAKPOINT", "ONEAPI_DEVICE_SELECTOR")
"""Variables of Ray's worker: its debugger, and Intel GPUs by numbers that hold for that process."""
_NOT_FOUND = 127
"""The exit code by which shells report that there is no such program."""
_MOST = 4000
"""Characters of an agent's last output."""


class AgentActor:
    """An actor that has an agent as its child."""

    def keep(self, command: list[str], role: bytes) -> tuple[int, str]:
        """Start an agent and wait for its end: its exit code and its output.

        The agent ends when its stdin does, also where this worker is killed.
        """
        # Ray's variables are about its own processes: a rank is none.
        environment = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith("RAY_") and name not in _NOT_PASSED_ON
        }
        environment |= _visible()
        with tempfile.TemporaryFile() as said:
            try:
                process = subprocess.Popen(
                    command, env=environment, stdin=subprocess.PIPE, stdout=said, stderr=said
                )
            except OSError as error:
                return _NOT_FOUND, str(error)
            assert process.stdin is not None
            with process, contextlib.suppress(BrokenPipeError):
                process.stdin.write(role)
                process.stdin.flush()
                process.wait()
            said.seek(0)
            return process.returncode, said.read().decode(errors="replace")[-_MOST:]


def _visible() -> dict[str, str]:
    """Variables that leave the GPUs which Ray has set aside for this actor, and hide all others.

    Ray has set some for its worker, unless ``RAY_EXPERIMENTAL_NOSET_*`` keeps it from that.
    """
    import ray  # noqa: PLC0415 - it is there where this runs, and not where it is read

    gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    numbers = ",".join(sorted(gpus, key=lambda number: (len(number), number)))
    cuda = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), numbers)
    # An empty mask would hide nothing.
    return cuda | {"ZE_AFFINITY_MASK": numbers or "none"}
