"""Each rank runs a command, and reads what it has written."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch.distributed as dist


@pytest.mark.ddp(world_size=2)
def test_command(ddp, tmp_path):
    path = tmp_path / f"exported-{ddp.rank}.txt"
    code = f"import time; time.sleep(0.1); open({str(path)!r}, 'w').write('{ddp.rank}')"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)
    dist.barrier()
    found = sorted(path.read_text() for path in tmp_path.glob("exported-*.txt"))
    assert found == ["0", "1"]
