"""Addresses, and which of them only this machine reaches."""

from __future__ import annotations

import pytest

from rookery.core.address import is_loopback, parse_address, write_address
from rookery.core.errors import UserError


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("0.0.0.0:4700", ("0.0.0.0", 4700)),
        ("node-a.cluster:0", ("node-a.cluster", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_is_host_and_port(text: str, parts: tuple[str, int]) -> None:
    assert parse_address(text) == parts
    assert write_address(*parts) == text


@pytest.mark.parametrize("text", ["", "host", ":4700", "host:", "host:x", "host:65536", "host:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UserError, match=r"--listen .*not of the form HOST:PORT"):
        parse_address(text)


def test_an_address_in_many_parts_needs_brackets() -> None:
    with pytest.raises(UserError, match=r"head ::1:4700: .*in brackets"):
        parse_address("::1:4700", "head")


def test_only_loopback_stays_on_this_machine() -> None:
    for host in ("127.0.0.1", "127.8.0.1", "::1", "localhost"):
        assert is_loopback(host)
    for host in ("0.0.0.0", "::", "10.0.0.1", "node-a", "localhost.example.org", "1.127.0.0"):
        assert not is_loopback(host)
