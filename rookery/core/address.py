"""Where the head of a run listens: ``HOST:PORT``."""

from __future__ import annotations

import ipaddress

from rookery.core.errors import UserError

MAX_PORT = 65535


def parse_address(text: str, flag: str = "--listen") -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``[IPv6]:PORT``; ``flag`` is the one it was given by."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UserError(f"{flag} {text}: write an IPv6 address in brackets, as in [::1]:4700")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= MAX_PORT):
        raise UserError(f"{flag} {text}: not of the form HOST:PORT, as in 0.0.0.0:4700")
    return host, int(port)


def write_address(host: str, port: int) -> str:
    """The inverse of :func:`parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. Other names are not looked up: what they mean is
    for others to say."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
