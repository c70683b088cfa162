"""Certificates: kept by the run, and known to hosts by their fingerprint."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rookery.carriers import tls
from rookery.carriers.tls import Tls, checked_fingerprint, from_files, pinned, self_signed
from rookery.core.errors import UserError
from rookery.core.hosts import Refused, Unreachable


@contextmanager
def showing(shown: Tls | None, directory: Path) -> Iterator[int]:
    """A port at which somebody answers once: by TLS, or says something else."""
    server = socket.create_server(("127.0.0.1", 0))
    if shown is not None:
        (directory / "c").write_bytes(shown.certificate)
        (directory / "k").write_bytes(shown.key)

    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            if shown is None:
                connection.sendall(b"220 mail.example.org\r\n")
                return
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(directory / "c", directory / "k")
            context.set_alpn_protocols(["h2"])
            context.wrap_socket(connection, server_side=True).close()

    thread = threading.Thread(target=answer)
    thread.start()
    yield server.getsockname()[1]
    thread.join(10.0)
    server.close()


def make_files(
    directory: Path, name: str, names: list[x509.GeneralName], password: bytes = b""
) -> tuple[Path, Path]:
    """A certificate and its key, as an administrator makes them."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "head")])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder(subject, subject, key.public_key(), 1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    files = directory / f"{name}.pem", directory / f"{name}.key"
    files[0].write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(pem))
    lock: Any = serialization.NoEncryption()
    if password:
        lock = serialization.BestAvailableEncryption(password)
    files[1].write_bytes(key.private_bytes(pem, form, lock))
    return files


DNS, EMAIL, IP = x509.DNSName, x509.RFC822Name, ipaddress.ip_address("10.0.0.1")


def test_a_run_keeps_its_certificate_and_nobody_else_reads_the_key(tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    again = self_signed(tmp_path)
    assert again == made
    assert again.fingerprint == made.fingerprint
    assert (tmp_path / tls.KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert len(made.fingerprint) == 64
    assert str(made.key) not in repr(made)
    (tmp_path / "other").mkdir()
    assert self_signed(tmp_path / "other").fingerprint != made.fingerprint


def test_a_key_without_its_certificate_is_replaced(tmp_path: Path) -> None:
    """The head was killed between the two."""
    made = self_signed(tmp_path)
    (tmp_path / tls.CERTIFICATE_FILE).unlink()
    assert self_signed(tmp_path).fingerprint != made.fingerprint
    assert self_signed(tmp_path).fingerprint == self_signed(tmp_path).fingerprint


def test_the_fingerprint_is_that_of_others(tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    theirs = x509.load_pem_x509_certificate(made.certificate).fingerprint(hashes.SHA256())
    assert checked_fingerprint(theirs.hex(":").upper()) == made.fingerprint
    assert checked_fingerprint(f"SHA256:{made.fingerprint.upper()}") == made.fingerprint
    for text in ("", "12", made.fingerprint + "0", "g" * 64):
        with pytest.raises(UserError, match="is not the SHA-256"):
            checked_fingerprint(text)


def test_the_certificate_that_was_pinned_is_taken_and_no_other(tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    with showing(made, tmp_path) as port:
        found = pinned("127.0.0.1", port, made.fingerprint, 10.0)
    assert (found.certificate, found.name) == (made.certificate, tls.NAME)
    with showing(made, tmp_path) as port, pytest.raises(Refused) as caught:
        pinned("127.0.0.1", port, "ab" * 32, 10.0)
    text = str(caught.value)
    assert "shows another certificate" in text
    assert made.fingerprint in text
    assert not caught.value.again
    assert "\n" not in text


def test_who_does_not_speak_tls_is_told(tmp_path: Path) -> None:
    with showing(None, tmp_path) as port, pytest.raises(Unreachable, match="but not by TLS"):
        pinned("127.0.0.1", port, "ab" * 32, 10.0)


def test_who_does_not_answer_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(Unreachable, match=r"does not answer: .*timed out"):
            pinned("127.0.0.1", port, "ab" * 32, 0.1)
    with pytest.raises(Unreachable, match=rf"127\.0\.0\.1:{port} does not answer"):
        pinned("127.0.0.1", port, "ab" * 32, 0.1)


@pytest.mark.parametrize(
    ("names", "name"),
    [
        ([DNS("a.example.org"), x509.IPAddress(IP)], "a.example.org"),
        ([x509.IPAddress(IP)], "10.0.0.1"),
        ([DNS("*.example.org")], "head.example.org"),
    ],
)
def test_certificates_of_others_have_names(
    names: list[x509.GeneralName], name: str, tmp_path: Path
) -> None:
    found = from_files(*make_files(tmp_path, "given", names))
    with showing(found, tmp_path) as port:
        assert pinned("127.0.0.1", port, found.fingerprint, 10.0).name == name


@pytest.mark.parametrize("names", [[], [EMAIL("me@example.org")]])
def test_a_certificate_for_nobody_is_refused(names: list[Any], tmp_path: Path) -> None:
    found = from_files(*make_files(tmp_path, "given", names))
    with showing(found, tmp_path) as port, pytest.raises(Refused, match="subjectAltName"):
        pinned("127.0.0.1", port, found.fingerprint, 10.0)


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    one, key = make_files(tmp_path, "one", [DNS("one")])
    _, other = make_files(tmp_path, "other", [DNS("other")])
    for wrong in (other, tmp_path / "none", one):
        with pytest.raises(UserError, match=f"cannot use certificate {one} with key {wrong}"):
            from_files(one, wrong)
    with pytest.raises(UserError, match="the key without a password"):
        from_files(*make_files(tmp_path, "locked", [DNS("one")], b"secret"))
    assert from_files(one, key).certificate == one.read_bytes()
