"""Stand-ins for SLURM's commands.

They start processes on the second of two machines, and fail where they are asked otherwise than as
they expect.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.acceptance.extensions.machines.cluster import Cluster
from tests.warm.python import standing_in

_SCONTROL = """#!/bin/sh
case "$*" in
    "show hostnames nodes[1-2]") printf 'alpha\\nbeta\\n' ;;
    "--oneliner show node alpha") echo "NodeName=alpha NodeAddr=10.77.0.1 Boards=1" ;;
    "--oneliner show node beta") echo "NodeName=beta NodeAddr=10.77.0.2 Boards=1" ;;
    *) echo "wrong list" >&2; exit 1 ;;
esac
"""
_SRUN = """#!/bin/bash
for argument; do
    case "$argument" in
        --nodelist=beta) found=1; shift ;;
        --nodes=1|--ntasks=1|--overlap|--mpi=none|--export=ALL|--cpu-bind=none) shift ;;
        --job-name=*) shift ;;
        -*) echo "srun: unrecognized option '$argument'" >&2; exit 1 ;;
        *) break ;;
    esac
done
for name in SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_GPU_BIND; do
    [ -z "${!name}" ] || { echo "srun: error: $name is for a step on all nodes" >&2; exit 1; }
done
[ "$found" ] || { echo "srun: error: no such node" >&2; exit 1; }
[ "$1" = {own} ] || { echo "srun: error: no such program: $1" >&2; exit 1; }
shift
exec env SLURMD_NODENAME=beta TMPDIR={tempdir} {step} {there} {python} "$@"
"""


@contextlib.contextmanager
def slurm_on(cluster: Cluster, folder: Path, step: str = "") -> Iterator[dict[str, str]]:
    """Have variables of a batch script that has both machines, for a block.

    Args:
        cluster: the machines.
        folder: for the commands.
        step: what SLURM sets in a step on the second, as ``NAME=TEXT``.
    """
    with standing_in() as python:
        fields = {
            "own": sys.executable,
            "tempdir": cluster.environment(1)["TMPDIR"],
            "step": step,
            # srun asks a daemon there, which is in no namespace of the caller's.
            "there": shlex.join(cluster.on(1)),
            "python": str(python),
        }
        srun = _SRUN
        for name, text in fields.items():
            srun = srun.replace(f"{{{name}}}", text)
        for name, text in (("scontrol", _SCONTROL), ("srun", srun)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        yield {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "SLURM_JOB_NODELIST": "nodes[1-2]",
            "SLURMD_NODENAME": "alpha",
        }
