"""Checks a server's TLS by a handshake, because Kafka's clients do not report TLS problems clearly."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

# OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH, _EMAIL_MISMATCH and _IP_ADDRESS_MISMATCH.
_HOST_MISMATCH = {62, 63, 64}
_ALERT_SECONDS = 1.0
_NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"}


def uses_tls(options: Mapping[str, str]) -> bool:
    """Returns True if a Java client with these options uses TLS."""
    return options.get("security.protocol", "").upper() in {"SSL", "SASL_SSL"}


def probe_tls(host: str, port: int, timeout_seconds: float) -> str | None:
    """Tries a TLS handshake with a server, without a client certificate.

    Args:
        timeout_seconds: The longest time to wait for the connection.

    Returns:
        `open` if the server accepts the client, `certificate` if it requires a client certificate. None if the server
        does not use TLS or does not answer.
    """
    try:
        with (
            socket.create_connection((host, port), timeout_seconds) as plain,
            _create_context_without_checks().wrap_socket(plain) as secured,
        ):
            secured.settimeout(_ALERT_SECONDS)
            with suppress(TimeoutError):
                secured.recv(1)  # in TLS 1.3 the server rejects a client after the handshake
            return "open"
    except ssl.SSLError as error:
        return "certificate" if "ALERT" in (error.reason or "") else None
    except OSError:
        return None


def find_tls_fault(host: str, port: int, options: Mapping[str, str], timeout_seconds: float) -> tuple[str, str] | None:
    """Checks a server's TLS and certificate by a handshake.

    Args:
        host: Host to connect to.
        port: Port to connect to.
        options: Options of a Java client. If they name no trusted certificates in PEM format, the server's certificate
            is not checked.
        timeout_seconds: Timeout of the connection in seconds.

    Returns:
        The kind of fault and OpenSSL's message; None if no fault was found. The kind is `plain` (the server does not
        use TLS), `untrusted` or `other_host` (its certificate is not trusted, or is for another host). Faults of the
        client's certificate are not found.
    """
    context = _create_verifying_context(options)
    try:
        with (
            socket.create_connection((host, port), timeout_seconds) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return None
    except ssl.SSLCertVerificationError as error:
        return "other_host" if error.verify_code in _HOST_MISMATCH else "untrusted", error.verify_message.rstrip(".")
    except ssl.SSLError as error:
        return ("plain", "its answer is not TLS") if error.reason in _NO_TLS else None
    except ConnectionResetError:
        return "plain", "it resets the connection"
    except OSError:
        return None  # another check reports a server that does not answer


def _create_context_without_checks() -> ssl.SSLContext:
    """Returns a TLS context that accepts every certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _create_verifying_context(options: Mapping[str, str]) -> ssl.SSLContext:
    """Returns a TLS context that accepts only the certificates which the Java client's options name as trusted.

    If the options name none in PEM format, it accepts every certificate.
    """
    trusted = options.get("ssl.truststore.certificates")
    location = options.get("ssl.truststore.location")
    context = _create_context_without_checks()
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
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # like Java, accept every trusted certificate as a root
    return context
