"""Whether a server's TLS is what the settings say, asked by a handshake: no Kafka client tells that plainly."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

# OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH, _EMAIL_MISMATCH and _IP_ADDRESS_MISMATCH.
_OTHER_HOST = {62, 63, 64}
_ALERT_SECONDS = 1.0
_NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"}


def speaks_tls(options: Mapping[str, str]) -> bool:
    """Whether a Java client with these options does."""
    return options.get("security.protocol", "").upper() in {"SSL", "SASL_SSL"}


def tls_greeting(host: str, port: int, seconds: float) -> str | None:
    """What a server answers to a client that speaks TLS and shows no certificate.

    Returns:
        `open`, or `certificate` if it wants one; None if it does not speak TLS.
    """
    try:
        with socket.create_connection((host, port), seconds) as plain, _anybody().wrap_socket(plain) as secured:
            secured.settimeout(_ALERT_SECONDS)
            with suppress(TimeoutError):
                secured.recv(1)  # by TLS 1.3, a refusal comes behind the handshake
            return "open"
    except ssl.SSLError as error:
        return "certificate" if "ALERT" in (error.reason or "") else None
    except OSError:
        return None


def tls_fault(host: str, port: int, options: Mapping[str, str], seconds: float) -> tuple[str, str] | None:
    """What is wrong with a server's TLS.

    Args:
        options: of a Java client. Where they name no authorities in PEM, a certificate is for the clients to judge, as
            is the client's own certificate always.

    Returns:
        `plain`, `untrusted` or `other_host`, with what OpenSSL says; None if nothing is, or it cannot be said.
    """
    context = _judge(options)
    try:
        with socket.create_connection((host, port), seconds) as plain, context.wrap_socket(plain, server_hostname=host):
            return None
    except ssl.SSLCertVerificationError as error:
        return "other_host" if error.verify_code in _OTHER_HOST else "untrusted", error.verify_message.rstrip(".")
    except ssl.SSLError as error:
        return ("plain", "it does not answer as TLS does") if error.reason in _NO_TLS else None
    except ConnectionResetError:
        return "plain", "it breaks the connection"
    except OSError:
        return None  # that it does not answer at all is found elsewhere


def _anybody() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _judge(options: Mapping[str, str]) -> ssl.SSLContext:
    trusted = options.get("ssl.truststore.certificates")
    location = options.get("ssl.truststore.location")
    context = _anybody()
    try:
        if location is not None and options.get("ssl.truststore.type", "").upper() == "PEM":
            trusted = Path(location).read_text(encoding="ascii")
        if trusted is None:
            return context
        context.load_verify_locations(cadata=trusted)
    except (OSError, ValueError):
        return context
    context.verify_mode = ssl.CERT_REQUIRED
    context.check_hostname = options.get("ssl.endpoint.identification.algorithm", "https") != ""
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as Java, for which each certificate it trusts is a root
    return context
