"""Hosts that are network namespaces of this machine, each with a name, joined by a switch.

::

    with network(3) as hosts:
        process = subprocess.Popen(hosts.command("rookery", "join", ..., host=1))
        hosts.cut(1)                    # pull out its cable
        hosts.mend(1)

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

ENTER = 'hostname "$0"; exec "$@"'


class Network:
    """The hosts, and what mpiexec needs to reach them."""

    def __init__(self, mark: str, num_hosts: int, directory: Path) -> None:
        self.mark = mark
        self.names = [f"node-{chr(ord('a') + host)}" for host in range(num_hosts)]
        self.addresses = [f"198.18.0.{host + 1}" for host in range(num_hosts)]
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
        return [*reach, "-localhost", self.addresses[0], "-hosts", ",".join(self.names)]

    def space(self, host: int) -> str:
        """The namespace of ``host``."""
        return f"{self.mark}-{self.names[host]}"

    def command(self, *words: str, host: int = 0) -> list[str]:
        """``words`` as a command that runs on ``host``."""
        enter = ["ip", "netns", "exec", self.space(host), "unshare", "--uts"]
        return [*enter, "sh", "-c", ENTER, self.names[host], *words]

    def cut(self, host: int = 0) -> None:
        """Pull out the cable of ``host``."""
        _ip("-n", self.space(host), "link", "set", "eth0", "down")

    def mend(self, host: int = 0) -> None:
        """And put it back."""
        _ip("-n", self.space(host), "link", "set", "eth0", "up")


@contextmanager
def network(num_hosts: int) -> Iterator[Network]:
    """Make the hosts; afterwards end whoever runs there and take them away."""
    need(shutil.which("ip") is not None, "ip not found; `make system-deps` installs iproute2")
    need(os.geteuid() == 0, "making network namespaces needs root")
    mark = f"rookery-{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        hosts = Network(mark, num_hosts, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        switch = f"{mark}-switch"
        for space in (switch, *map(hosts.space, range(num_hosts))):
            _ip("netns", "add", space)
            stack.callback(_remove, space)
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for host in range(num_hosts):
            _plug_in(hosts.space(host), hosts.addresses[host], switch, f"port{host}")
        yield hosts


def _plug_in(space: str, address: str, switch: str, port: str) -> None:
    """Lay a cable from ``space`` to the switch."""
    cable = ["type", "veth", "peer", "name", port, "netns", switch]
    _ip("-n", space, "link", "add", "eth0", *cable)
    _ip("-n", switch, "link", "set", port, "master", "switch", "up")
    _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
    for device in ("eth0", "lo"):
        _ip("-n", space, "link", "set", device, "up")


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout


def _remove(space: str) -> None:
    for pid in _ip("netns", "pids", space).split():
        os.kill(int(pid), signal.SIGKILL)
    _ip("netns", "del", space)
