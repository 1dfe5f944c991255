"""Stand-ins for SLURM's commands.

They start processes on the second of two machines, and fail where they are asked otherwise than as
they expect.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.acceptance.machines.cluster import Cluster

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
exec env SLURMD_NODENAME=beta TMPDIR={tempdir} {step} {there} "$@"
"""


def slurm_on(cluster: Cluster, folder: Path, step: str = "") -> dict[str, str]:
    """Variables of a batch script that has both machines.

    Args:
        cluster: the machines.
        folder: for the commands.
        step: what SLURM sets in a step on the second, as ``NAME=TEXT``.
    """
    # srun asks a daemon there, which is in no namespace of the caller's.
    there = " ".join(f"'{word}'" for word in cluster.on(1))
    tempdir = cluster.environment(1)["TMPDIR"]
    srun = _SRUN.replace("{there}", there).replace("{tempdir}", tempdir).replace("{step}", step)
    for name, text in (("scontrol", _SCONTROL), ("srun", srun)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "nodes[1-2]",
        "SLURMD_NODENAME": "alpha",
    }
