"""A certificate authority for tests, and the certificates and keys that it issues, as PEM."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_BEGIN = datetime.now(UTC) - timedelta(hours=1)


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, as PEM."""

    certificate: str
    key: str


@dataclass(frozen=True)
class Authority:
    """A certificate authority with a name."""

    name: str = "sessionlake tests"
    _key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    @cached_property
    def pem(self) -> str:
        own = _name(self.name)
        built = _builder(own, own, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        return _pem(built.sign(self._key, hashes.SHA256()))

    def signed(self, name: str, *hosts: str) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        built = _builder(_name(name), _name(self.name), key.public_key())
        if hosts:
            built = built.add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False)
        return Identity(_pem(built.sign(self._key, hashes.SHA256())), pkcs8(key))


def pkcs8(key) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(host: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)


def _builder(subject: x509.Name, issuer: x509.Name, public) -> x509.CertificateBuilder:
    built = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    built = built.serial_number(x509.random_serial_number())
    return built.not_valid_before(_BEGIN).not_valid_after(_BEGIN + timedelta(days=2))


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
