"""OpenSSH's server on a machine of a cluster, and a client that knows its key."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.acceptance.extensions.machines.cluster import ADDRESSES, Cluster

_SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
_UP_LIMIT = 20


def problem() -> str:
    """Why there can be no ssh server here; empty if there can."""
    if _SSHD is None or shutil.which("ssh") is None:
        return "no sshd: apt-get install openssh-server openssh-client"
    return ""


@contextlib.contextmanager
def sshd_up(cluster: Cluster, before: str = "") -> Iterator[dict[str, str]]:
    """Have a server on node 1, whom ssh calls beta, for a block; the variables of its users.

    Args:
        cluster: the machines.
        before: what node 1 does first, as of :meth:`Cluster.on`.
    """
    assert _SSHD is not None
    with tempfile.TemporaryDirectory(prefix="ddps-") as name:
        folder = Path(name)
        for key in ("host", "user"):
            _make_key(folder / key)
        _write_config(cluster, folder)
        # Where the server has its processes without rights.
        Path("/run/sshd").mkdir(exist_ok=True)
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                # A run of these tests that is killed ends it, too.
                [
                    *cluster.on(1, before),
                    "setpriv",
                    "--pdeathsig",
                    "KILL",
                    _SSHD,
                    "-D",
                    "-e",
                    "-f",
                    str(folder / "sshd_config"),
                ],
                env={**os.environ, **cluster.environment(1)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        cluster.servers.add(server.pid)
        try:
            _wait_for(cluster, folder)
            yield {"PATH": f"{folder}:{os.environ['PATH']}"}
        finally:
            server.kill()
            server.wait()
            cluster.kill()


def _make_key(file: Path) -> None:
    made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)]
    subprocess.run(made, check=True, stdin=subprocess.DEVNULL, capture_output=True)


def _write_config(cluster: Cluster, folder: Path) -> None:
    tempdir = cluster.environment(1)["TMPDIR"]
    (folder / "sshd_config").write_text(
        f"ListenAddress {ADDRESSES[1]}\nHostKey {folder}/host\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/user.pub\nStrictModes no\nPermitRootLogin yes\nUsePAM no\n"
        f"SetEnv TMPDIR={tempdir}\n"
    )
    key = (folder / "host.pub").read_text()
    (folder / "known").write_text(f"{ADDRESSES[1]} {key}")
    (folder / "ssh_config").write_text(
        f"Host beta stranger\n  HostName {ADDRESSES[1]}\n"
        f"Host nobody\n  HostName {ADDRESSES[0]}\n"
        f"Host stranger\n  IdentityFile {folder}/none\n"
        f"Host * !stranger\n  IdentityFile {folder}/user\n"
        f"Host *\n  UserKnownHostsFile {folder}/known\n  IdentitiesOnly yes\n"
    )
    program = folder / "ssh"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    program.chmod(0o755)


def _wait_for(cluster: Cluster, folder: Path) -> None:
    deadline = time.monotonic() + _UP_LIMIT
    while b"Server listening" not in (folder / "log").read_bytes():
        assert time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.05)
