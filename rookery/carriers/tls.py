"""Certificates of the head: given as files, or self-signed and known by their fingerprint.

A host that knows the fingerprint trusts exactly this certificate and no authority. Its dates do not
matter then, so clocks may be apart.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import re
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from rookery.core.address import write_address
from rookery.core.errors import UserError
from rookery.core.hosts import Refused, Unreachable, missing_extra
from rookery.runs.atomic import write_atomic, writing

CERTIFICATE_FILE, KEY_FILE = "tls-certificate.pem", "tls-key.pem"
NAME = "rookery-head"
"""Whom a self-signed certificate is for; hosts ask for whatever stands in the one they pinned."""
_BEGIN = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_END = datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC)
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Tls:
    """What the head shows, in PEM, and the key that proves that it is its own."""

    certificate: bytes
    key: bytes = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate."""
        return _fingerprint(ssl.PEM_cert_to_DER_cert(_first(self.certificate)))


@dataclass(frozen=True, slots=True)
class Pinned:
    """A certificate that has the right fingerprint, and a name that it is for."""

    certificate: bytes
    name: str


# ---- the head's ----------------------------------------------------------------------------------


def from_files(certificate: Path, key: Path) -> Tls:
    """The certificate (with those between it and its authority) and its key, of PEM files."""
    try:
        found = Tls(certificate.read_bytes(), key.read_bytes())
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
        _ = found.fingerprint
    except (OSError, ValueError) as error:  # ssl's errors are OSErrors
        raise UserError(
            f"cannot use certificate {certificate} with key {key}: {error}; both must be PEM "
            "files that belong together, the key without a password"
        ) from error
    return found


def self_signed(directory: Path) -> Tls:
    """A certificate that is kept in ``directory``: a head that is resumed shows the same."""
    certificate, key = directory / CERTIFICATE_FILE, directory / KEY_FILE
    if certificate.exists() and key.exists():
        return from_files(certificate, key)
    made = _made()
    with writing(key):
        write_atomic(key, made.key, mode=0o600)
        write_atomic(certificate, made.certificate)
    return made


def _made() -> Tls:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise missing_extra(error) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form, secret = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return Tls(certificate.public_bytes(pem), key.private_bytes(pem, form, secret))


# ---- the hosts' ----------------------------------------------------------------------------------


def pinned(host: str, port: int, fingerprint: str, timeout_secs: float) -> Pinned:
    """The certificate that the head shows, if it has this ``fingerprint``."""
    address = write_address(host, port)
    wanted = checked_fingerprint(fingerprint)
    found = _shown(host, port, address, timeout_secs)
    if not hmac.compare_digest(_fingerprint(found), wanted):
        raise Refused(
            f"{address} shows another certificate (sha256 {_fingerprint(found)}) than the "
            "fingerprint that was given: it is not the head you mean, or somebody is in between; "
            "take the line that the head prints"
        )
    return Pinned(ssl.DER_cert_to_PEM_cert(found).encode(), _name_in(found))


def checked_fingerprint(text: str) -> str:
    """As it is compared; colons and capitals do not matter."""
    found = text.lower().replace(":", "").removeprefix("sha256")
    if not _FINGERPRINT.fullmatch(found):
        raise UserError(f"fingerprint '{text[:80]}' is not the SHA-256 of a certificate, 64 digits")
    return found


def _shown(host: str, port: int, address: str, timeout_secs: float) -> bytes:
    """The certificate of whoever answers, in DER; trusted by nobody yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), timeout_secs) as plain,
            context.wrap_socket(plain, server_hostname=host) as wrapped,
        ):
            found = wrapped.getpeercert(binary_form=True)
    except ssl.SSLError as error:
        raise Unreachable(
            f"{address} answers, but not by TLS ({error.reason or error}); is it a Rookery head "
            "that listens beyond its own machine?"
        ) from error
    except OSError as error:
        raise Unreachable(f"the head at {address} does not answer: {error}") from error
    if not found:
        raise Unreachable(f"{address} shows no certificate")
    return found


def _name_in(der: bytes) -> str:
    """A name that the certificate is for."""
    try:
        from cryptography import x509
    except ImportError as error:
        raise missing_extra(error) from error
    try:
        names = (
            x509.load_der_x509_certificate(der)
            .extensions.get_extension_for_class(x509.SubjectAlternativeName)
            .value
        )
    except (ValueError, x509.ExtensionNotFound) as error:
        raise Refused(
            f"the head's certificate says not for whom it is ({error}); it needs a subjectAltName"
        ) from error
    known = [*names.get_values_for_type(x509.DNSName)]
    known += [str(ip) for ip in names.get_values_for_type(x509.IPAddress)]
    if not known:
        raise Refused("the head's certificate is for no host name; it needs a subjectAltName")
    return known[0].replace("*", "head")


def _fingerprint(der: bytes) -> str:
    return hashlib.sha256(der).hexdigest()


def _first(chain: bytes) -> str:
    """The first certificate of a PEM file."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    text = chain.decode("ascii", "replace")
    body, found, _ = text[max(text.find(begin), 0) :].partition(end)
    return body + found
