"""GPUs that machines of a cluster list and do not have.

Each process of a machine finds them as it would find others: ``nvidia-smi`` lists those of the
machine's name, and beside torch's libraries lies one for CUDA. Of torch itself, what ranks ask of
CUDA is written down instead, by a conftest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tests.acceptance.suite import INNER

CONFTEST = """
    import torch

    torch.cuda.set_device = lambda index: setattr(torch, "set_to", index)
"""
_SITE = """
import sys
from importlib.machinery import PathFinder


class WithCuda:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path) if name == "torch" else None
        if spec is not None:
            spec.submodule_search_locations.append({folder!r})
        return spec


sys.meta_path.insert(0, WithCuda)
if "torch" in sys.modules:
    sys.modules["torch"].__spec__.submodule_search_locations.append({folder!r})
"""
_SMI = """#!/bin/sh
case "$(uname -n)" in
{cases}
esac
index=0
while [ "$index" -lt "${{count:-0}}" ]; do
    echo "GPU $index: A stand-in (UUID: GPU-$(uname -n)-$index)"
    index=$((index + 1))
done
"""


def variables_for(folder: Path, counts: Mapping[str, int]) -> dict[str, str]:
    """What processes of machines with so many GPUs, by their names, are started with.

    Args:
        folder: for the stand-ins.
        counts: of machines that are not named there is none.
    """
    torch, tools = folder / "torch", folder / "bin"
    for each in (torch / "lib", tools):
        each.mkdir(parents=True)
    (torch / "lib" / "libtorch_cuda.so").touch()
    (folder / "sitecustomize.py").write_text(_SITE.format(folder=str(torch)))
    cases = "\n".join(f"    {name}) count={count} ;;" for name, count in counts.items())
    (tools / "nvidia-smi").write_text(_SMI.format(cases=cases))
    (tools / "nvidia-smi").chmod(0o755)
    paths = [str(INNER), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
    }
