"""Client options of the two Kafka clients in use, Spark's (Java) and librdkafka's, from the one configuration."""

from __future__ import annotations

import re
import socket

from sessionlake.errors import AccessError, BrokerError, ConfigError, SessionlakeError
from sessionlake.kafka.security import (
    credentials_in,
    java_security,
    librdkafka_security,
    setting,
    without_secrets,
)
from sessionlake.kafka.tls import speaks_tls, tls_fault, tls_greeting
from sessionlake.local.probe import NoAnswer, addresses, is_loopback, unanswered
from sessionlake.settings.kafka import Mechanism
from sessionlake.settings.model import Settings, milliseconds
from sessionlake.spark.session import on_platform

_CONNECT_SECONDS = 2.0
_METADATA_SECONDS = 5.0
_LONGEST = 300
_LOGIN = ("sasl.", "security.protocol")
# Databricks' runtime has Kafka's Java client under another name.
PACKAGE, PLATFORM_PACKAGE = "org.apache.kafka", "kafkashaded.org.apache.kafka"

# What a consumer decompresses at a time at most: of few messages, of many, and after an unfinished batch.
# Spark asks the broker twice for its offsets with each poll, so small polls of many messages take half of bronze's CPU
# time. By default a consumer takes 500 records. Each topic-partition that is read at once holds two polls in memory.
POLLED_BYTES = 320 * 1024 * 1024
POLLED_BYTES_OF_MANY = 5_000 * 1024 * 1024
POLLED_BYTES_AFTER_FAILURE = 80 * 1024 * 1024
# Then, of all topic-partitions together: twice so much is in memory.
POLLED_BYTES_IN_ALL = 320 * 1024 * 1024
_KAFKA_POLLED = 500

READ_COMMITTED = {"isolation.level": "read_committed"}
"""How every consumer reads: records of aborted transactions are no messages, those of open ones not yet."""

# What both clients call the same, or nearly. All else in `kafka.options` tunes Spark's consumer, and librdkafka
# refuses properties it does not know.
_SHARED = {
    "client.id": "client.id",
    "client.dns.lookup": "client.dns.lookup",
    "security.protocol": "security.protocol",
    "sasl.mechanism": "sasl.mechanism",
    "sasl.kerberos.service.name": "sasl.kerberos.service.name",
    "ssl.endpoint.identification.algorithm": "ssl.endpoint.identification.algorithm",
    "ssl.key.password": "ssl.key.password",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}


def java_client_options(settings: Settings) -> dict[str, str]:
    """How a Kafka client of the JVM reaches the broker.

    Raises:
        ConfigError: a certificate or key cannot be used.
    """
    refresh = str(milliseconds(settings.bronze.topic_refresh))
    options, security = {"metadata.max.age.ms": refresh, **settings.kafka.options}, settings.kafka.security
    if security is not None:
        options |= java_security(security, PLATFORM_PACKAGE if on_platform() else PACKAGE)
    return options | {"bootstrap.servers": settings.kafka.bootstrap_servers}


def spark_kafka_options(settings: Settings) -> dict[str, str]:
    """Options of Spark's Kafka source and sink that say how to reach the broker: the client's, each prefixed `kafka.`.

    What to read and from where (`subscribePattern`, `startingOffsets`) is the reader's to add. With a service
    credential the platform logs in, and refuses a login of the client's own.
    """
    options, credential = java_client_options(settings), settings.kafka.service_credential
    if credential is None:
        return {f"kafka.{key}": value for key, value in options.items()}
    kept = {f"kafka.{key}": value for key, value in options.items() if not key.startswith(_LOGIN)}
    return kept | {"databricks.serviceCredential": credential}


def spark_source_options(settings: Settings, polled_bytes: int = POLLED_BYTES) -> dict[str, str]:
    """`spark_kafka_options` for reading: only records of committed transactions, and few large ones at a time.

    Args:
        polled_bytes: that a poll may have, if every message is as large as `capture.max_message_bytes`.
    """
    at_once = max(1, polled_bytes // settings.capture.max_message_bytes)
    own = {"kafka.max.poll.records": str(min(at_once, _KAFKA_POLLED))}
    return own | spark_kafka_options(settings) | {f"kafka.{key}": value for key, value in READ_COMMITTED.items()}


def consumer_config(settings: Settings, group: str) -> dict[str, str | int | bool]:
    """`client_config` for a consumer that reads what bronze reads, and commits no offsets.

    Args:
        group: the consumer group, by which a broker's log names the client.
    """
    own: dict[str, str | int | bool] = {"group.id": f"sessionlake-{group}", "enable.auto.commit": False}
    own["log_level"] = 2  # errors are raised
    return {**client_config(settings), **READ_COMMITTED, **own}


def client_config(settings: Settings) -> dict[str, str]:
    """The configured connection as librdkafka properties, for `confluent_kafka` clients.

    Security options are translated; the consumer tuning meant for Spark is left out.

    Raises:
        ConfigError: a key or trust store is a Java one, which librdkafka cannot read; or a file cannot be used.
    """
    options = settings.kafka.options
    config = {"bootstrap.servers": settings.kafka.bootstrap_servers}
    config |= {_SHARED[key]: value for key, value in options.items() if key in _SHARED}
    if config.get("ssl.endpoint.identification.algorithm") == "":
        config["ssl.endpoint.identification.algorithm"] = "none"  # Java says it with an empty value
    login = credentials_in(options.get("sasl.jaas.config", ""))
    config |= {f"sasl.{name}": login[name] for name in ("username", "password") if name in login}
    security = settings.kafka.security
    return config | _stores(options) | ({} if security is None else librdkafka_security(security))


def require_broker(settings: Settings) -> None:
    """Returns at once if a Kafka broker answers at `kafka.bootstrap_servers`, and lets this client in.

    Raises:
        BrokerError: none does, within seconds.
        AccessError: it does not let this client in, or cannot show who it is.
        ConfigError: the key holds no `host:port`, or the settings of a secured broker cannot be used.
    """
    host, port = _listening(settings)
    unheard = _asked(settings)
    if unheard is None:
        return
    if unheard.refused:
        raise refused(settings, unheard.told)
    greeting, tls = tls_greeting(host, port, _CONNECT_SECONDS), speaks_tls(java_client_options(settings))
    if greeting is not None and not tls:
        raise BrokerError(
            f"Kafka at {host}:{port} speaks TLS, and {setting(settings, 'protocol')} does not say so: "
            "set SSL, or SASL_SSL with a login"
        )
    if greeting == "certificate":
        raise AccessError(
            f"Kafka at {host}:{port} wants a certificate of this client that it trusts: "
            f"correct {setting(settings, 'certificate', 'key')}"
        )
    raise _unreachable(settings, "something listens there but does not answer as Kafka does")


def require_listener(settings: Settings) -> None:
    """Returns at once if anything listens at `kafka.bootstrap_servers`, by the TLS that is configured.

    Raises:
        BrokerError: nothing does, within seconds, or not by TLS.
        AccessError: it cannot show that it is the server that is meant.
        ConfigError: the key holds no `host:port`, or a certificate cannot be used.
    """
    _listening(settings)


def refused(settings: Settings, told: str) -> AccessError:
    """The error of a client that Kafka has answered, and does not let in.

    Args:
        told: what the client says.
    """
    servers, said = settings.kafka.bootstrap_servers, without_secrets(settings, told)[:_LONGEST]
    security = settings.kafka.security
    if re.search("certificate verify failed|certification path|No (?:subject alternative|name matching)", said):
        remedy = f"its certificate does not convince this client: correct {setting(settings, 'ca')}, or the host name"
    elif security is None:
        remedy = f"correct {setting(settings, 'protocol')}, or let it describe topics"
    elif security.mechanism is None:
        remedy = f"it wants another certificate: correct {setting(settings, 'certificate', 'key')}"
    elif security.mechanism is Mechanism.OAUTHBEARER:
        remedy = f"correct {setting(settings, 'token_url', 'client_id', 'client_secret')}"
    else:
        remedy = f"correct {setting(settings, 'username', 'password')}, or let {security.username} describe topics"
    return AccessError(f"Kafka at {servers} refuses this client ({said}): {remedy}")


def _stores(options: dict[str, str]) -> dict[str, str]:
    config = {}
    for store, target in (("truststore", "ssl.ca.location"), ("keystore", "ssl.keystore.location")):
        location = options.get(f"ssl.{store}.location")
        if location is None:
            continue
        kind = options.get(f"ssl.{store}.type", "JKS").upper()
        usable = "PEM" if store == "truststore" else "PKCS12"
        if kind != usable:
            raise ConfigError(
                f"kafka.options: ssl.{store}.location is a {kind} store, which only Java reads; convert it to {usable} "
                f"and set ssl.{store}.type: {usable}"
            )
        config[target] = location
        if store == "keystore" and "ssl.keystore.password" in options:
            config["ssl.keystore.password"] = options["ssl.keystore.password"]
    return config


def _listening(settings: Settings) -> tuple[str, int]:
    """The first server that listens, by the TLS that is configured."""
    failures = []
    for host, port in addresses(settings):
        failure = _connect(host, port)
        if failure is None:
            _require_tls(settings, host, port)
            return host, port
        failures.append(f"{host}:{port} {failure}")
    raise _unreachable(settings, "; ".join(failures))


def _connect(host: str, port: int) -> str | None:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
            return None
    except OSError as error:
        return (error.strerror or str(error)).lower()


def _require_tls(settings: Settings, host: str, port: int) -> None:
    options = java_client_options(settings)
    found = tls_fault(host, port, options, _CONNECT_SECONDS) if speaks_tls(options) else None
    if found is None:
        return
    fault, why = found
    server, protocol = f"Kafka at {host}:{port}", options["security.protocol"]
    errors: dict[str, SessionlakeError] = {
        "plain": BrokerError(
            f"{server} does not speak TLS ({why}), and {setting(settings, 'protocol')} is {protocol}: "
            "correct it, or the port in kafka.bootstrap_servers"
        ),
        "untrusted": AccessError(
            f"{server} has a certificate that is not to be trusted ({why}): "
            f"let {setting(settings, 'ca')} have the authority that has signed it"
        ),
        "other_host": AccessError(
            f"{server} has a certificate for other hosts ({why}): "
            "let kafka.bootstrap_servers name it as its certificate does"
        ),
    }
    raise errors[fault]


def _asked(settings: Settings) -> NoAnswer | None:
    try:
        import confluent_kafka  # noqa: F401  (a Databricks cluster has only Spark's client)

        config = client_config(settings)
    except (ImportError, ConfigError):
        return None  # it listens: the rest Spark's own client will tell
    return unanswered(config, _METADATA_SECONDS)


def _unreachable(settings: Settings, why: str) -> BrokerError:
    local = all(is_loopback(host) for host, _ in addresses(settings))
    start = "start the embedded broker with `sessionlake broker up`, or " if local else "start or unblock it, or "
    return BrokerError(
        f"no Kafka broker at {settings.kafka.bootstrap_servers} ({why}): {start}correct kafka.bootstrap_servers"
    )
