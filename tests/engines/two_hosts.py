"""Two hosts on this one: network namespaces joined by a cable, each with a host name of its own.

::

    with two_hosts() as hosts:
        process = subprocess.Popen(hosts.command("mpiexec", *hosts.flags, "-n", "2", "hostname"))

Nothing of the real network changes. Making namespaces needs root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.needs import need

NAMES = ("node-a", "node-b")
ADDRESSES = ("198.18.0.1", "198.18.0.2")
ENTER = 'hostname "$0"; exec "$@"'


class TwoHosts:
    """The hosts, and what mpiexec needs to reach them."""

    def __init__(self, mark: str, directory: Path) -> None:
        self.mark = mark
        self.launcher = directory / "login"
        self.launcher.write_text(
            "#!/bin/sh\n# In place of ssh: [flags] HOST COMMAND\n"
            'while [ "${1#-}" != "$1" ]; do shift; done\n'
            "host=$1; shift\n"
            f'exec ip netns exec {mark}-"$host" unshare --uts sh -c "hostname $host; exec $*"\n'
        )
        self.launcher.chmod(0o755)

    @property
    def flags(self) -> list[str]:
        """Of MPICH's mpiexec, run on the first host."""
        reach = ["-launcher", "ssh", "-launcher-exec", str(self.launcher)]
        return [*reach, "-localhost", ADDRESSES[0], "-hosts", ",".join(NAMES)]

    def command(self, *words: str, host: int = 0) -> list[str]:
        """``words`` as a command that runs on the first host, or on ``host``."""
        enter = ["ip", "netns", "exec", f"{self.mark}-{NAMES[host]}", "unshare", "--uts"]
        return [*enter, "sh", "-c", ENTER, NAMES[host], *words]

    def cut(self) -> None:
        """Pull the cable out."""
        self._cable("down")

    def mend(self) -> None:
        """And put it back."""
        self._cable("up")

    def _cable(self, state: str) -> None:
        _ip("-n", f"{self.mark}-{NAMES[0]}", "link", "set", "eth0", state)


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Make the hosts; afterwards end whoever runs there and take them away."""
    need(shutil.which("ip") is not None, "ip not found; `make system-deps` installs iproute2")
    need(os.geteuid() == 0, "making network namespaces needs root")
    mark = f"rookery-{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        spaces = [f"{mark}-{name}" for name in NAMES]
        for space in spaces:
            _ip("netns", "add", space)
            stack.callback(_remove, space)
        cable = ["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", spaces[1]]
        _ip("-n", spaces[0], *cable)
        for space, address in zip(spaces, ADDRESSES, strict=True):
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip("-n", space, "link", "set", device, "up")
        yield TwoHosts(mark, directory)


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout


def _remove(space: str) -> None:
    for pid in _ip("netns", "pids", space).split():
        os.kill(int(pid), signal.SIGKILL)
    _ip("netns", "del", space)
