"""Translates `kafka.security` into options of the two Kafka clients, and removes secrets from texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import SecretStr

from sessionlake.errors import ConfigError
from sessionlake.settings.file import PEM
from sessionlake.settings.kafka import SaslMechanism
from sessionlake.settings.model import KafkaSecurity, Settings

_OAUTH = "common.security.oauthbearer"
_MODULES = {
    SaslMechanism.PLAIN: "common.security.plain.PlainLoginModule",
    SaslMechanism.SCRAM_SHA_256: "common.security.scram.ScramLoginModule",
    SaslMechanism.SCRAM_SHA_512: "common.security.scram.ScramLoginModule",
    SaslMechanism.OAUTHBEARER: f"{_OAUTH}.OAuthBearerLoginModule",
}
# An option whose name has one of these words has a secret in its value.
_SECRET_OPTIONS = ("password", "jaas", "secret", "keystore.key", "token")
_OPTION = re.compile(r'\b(?P<name>\w+)\s*=\s*"(?P<value>(?:[^"\\]|\\.)*)"')
HIDDEN = "(hidden)"


def build_java_security_options(security: KafkaSecurity, package: str) -> dict[str, str]:
    """Returns the security options of a Java client.

    Args:
        security: The settings in `kafka.security`.
        package: Package of the client's classes. It has another name in Databricks' runtime.

    Raises:
        ConfigError: A file cannot be read, or the key has a format that Java cannot read.
    """
    options = {"security.protocol": str(security.protocol)}
    if security.mechanism is not None:
        login = f"{package}.{_MODULES[security.mechanism]} required {_format_credentials(security)};"
        options |= {"sasl.mechanism": str(security.mechanism), "sasl.jaas.config": login}
    if security.mechanism is SaslMechanism.OAUTHBEARER:
        options["sasl.oauthbearer.token.endpoint.url"] = str(security.token_url)
        options["sasl.login.callback.handler.class"] = f"{package}.{_OAUTH}.OAuthBearerLoginCallbackHandler"
    if security.ca is not None:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _read_pem_text("ca", security.ca)}
    if security.certificate is not None:
        options["ssl.keystore.type"] = "PEM"
        options["ssl.keystore.certificate.chain"] = _read_pem_text("certificate", security.certificate)
        options["ssl.keystore.key"] = _read_private_key(security)
    if security.key_password is not None:
        options["ssl.key.password"] = security.key_password.get_secret_value()
    return options


def build_librdkafka_security_options(security: KafkaSecurity) -> dict[str, str]:
    """Returns the security properties of a librdkafka client.

    Raises:
        ConfigError: A file cannot be read, or the key has a format that Java cannot read.
    """
    given: dict[str, str | SecretStr | None] = {
        "security.protocol": str(security.protocol),
        "sasl.mechanism": security.mechanism and str(security.mechanism),
        "sasl.username": security.username,
        "sasl.password": security.password,
        "sasl.oauthbearer.token.endpoint.url": security.token_url,
        "sasl.oauthbearer.client.id": security.client_id,
        "sasl.oauthbearer.client.secret": security.client_secret,
        "sasl.oauthbearer.scope": security.scope,
        "sasl.oauthbearer.method": "oidc" if security.mechanism is SaslMechanism.OAUTHBEARER else None,
        "ssl.ca.pem": security.ca and _read_pem_text("ca", security.ca),
        "ssl.certificate.pem": security.certificate and _read_pem_text("certificate", security.certificate),
        "ssl.key.pem": _read_private_key(security) if security.key is not None else None,
        "ssl.key.password": security.key_password,
    }
    return {name: _read_secret(value) for name, value in given.items() if value is not None}


def parse_credentials(jaas_config: str) -> dict[str, str]:
    """Returns the options in a value of `sasl.jaas.config`, such as `username` and `password`, by name."""
    return {found["name"]: re.sub(r"\\(.)", r"\1", found["value"]) for found in _OPTION.finditer(jaas_config)}


def join_setting_names(settings: Settings, *keys: str) -> str:
    """Returns a text that names the settings to correct: these keys of `kafka.security`, with commas and "and".

    If the configuration sets Kafka's own options instead, it names `kafka.options`.
    """
    uses_kafka_options = any(name.startswith(("sasl.", "ssl.", "security.")) for name in settings.kafka.options)
    if settings.kafka.security is None and uses_kafka_options:
        return "kafka.options"
    *others, last = keys
    return f"{', '.join(others)} and {last} in kafka.security" if others else f"kafka.security.{last}"


def hide_secrets(settings: Settings, text: str) -> str:
    """Returns a text of a Kafka client with all configured secrets replaced by "(hidden)". Errors may repeat them."""
    security, options = settings.kafka.security, settings.kafka.options
    secrets = [value for name, value in options.items() if any(word in name for word in _SECRET_OPTIONS)]
    login = parse_credentials(options.get("sasl.jaas.config", ""))
    secrets += [value for name, value in login.items() if name.lower().endswith(("password", "secret"))]
    if security is not None:
        values = (security.password, security.client_secret, security.key, security.key_password)
        secrets += [value.get_secret_value() for value in values if value is not None]
    secrets += [_quote_value(secret)[1:-1] for secret in secrets]
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN) if secret else text
    return text


def _read_secret(value: str | SecretStr) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _format_credentials(security: KafkaSecurity) -> str:
    """Returns the login settings in the form of `sasl.jaas.config`, such as `username="u" password="p"`."""
    given: Mapping[str, str | SecretStr | None]
    if security.mechanism is SaslMechanism.OAUTHBEARER:
        given = {"clientId": security.client_id, "clientSecret": security.client_secret, "scope": security.scope}
    else:
        given = {"username": security.username, "password": security.password}
    return " ".join(f"{name}={_quote_value(_read_secret(value))}" for name, value in given.items() if value is not None)


def _quote_value(value: str) -> str:
    """Returns a value in double quotes, as `sasl.jaas.config` needs it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _read_pem_text(key: str, value: str) -> str:
    """Returns the PEM text of a certificate or key.

    Args:
        key: The setting's name in `kafka.security`, for errors.
        value: The PEM text itself, or the path of a file that has it.
    """
    if value.lstrip().startswith(PEM):
        return value
    try:
        text = Path(value).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        shown = HIDDEN if key == "key" else value  # the value may be a key in another format instead of a path
        raise ConfigError(
            f"kafka.security.{key}: the file {shown} cannot be read ({reason})",
            fix="Correct the path or the file's permissions",
        ) from None
    if PEM not in text:
        raise ConfigError(
            f"kafka.security.{key}: {value} is not a PEM file, which has a line that begins with {PEM}…",
            fix="Convert the file to PEM (`openssl x509 -in FILE -out FILE.pem`), or name another file",
        )
    return text


def _read_private_key(security: KafkaSecurity) -> str:
    """Returns the PEM text of the client's private key. Raises a `ConfigError` if it is not in the format PKCS#8."""
    given = "" if security.key is None else security.key.get_secret_value()
    text = _read_pem_text("key", given)
    if "PRIVATE KEY-----" not in text or not any(f"{PEM}{kind}" in text for kind in ("PRIVATE", "ENCRYPTED PRIVATE")):
        raise ConfigError(
            "kafka.security.key is not a private key in the form PKCS#8",
            why=f"Java reads no other format from PEM ({PEM}PRIVATE KEY or ENCRYPTED PRIVATE KEY)",
            fix="Convert it with `openssl pkcs8 -topk8 -nocrypt -in KEY`",
        )
    return text
