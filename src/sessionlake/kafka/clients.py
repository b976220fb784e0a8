"""Options of the two Kafka clients, Spark's Java client and librdkafka, and a check that the broker is reachable."""

from __future__ import annotations

import re
import socket

from sessionlake.errors import BrokerError, ConfigError, KafkaAccessError, SessionlakeError
from sessionlake.kafka.security import (
    build_java_security_options,
    build_librdkafka_security_options,
    hide_secrets,
    join_setting_names,
    parse_credentials,
)
from sessionlake.kafka.tls import find_tls_fault, probe_tls, uses_tls
from sessionlake.local.probe import BrokerMetadataFailure, is_loopback, parse_bootstrap_servers, request_broker_metadata
from sessionlake.settings.kafka import Mechanism
from sessionlake.settings.model import Settings
from sessionlake.settings.section import milliseconds
from sessionlake.spark.session import is_on_databricks

_CONNECT_SECONDS = 2.0
_METADATA_SECONDS = 5.0
_LONGEST = 300
_LOGIN = ("sasl.", "security.protocol")
# Databricks' runtime has Kafka's Java client in a renamed package.
PACKAGE, PLATFORM_PACKAGE = "org.apache.kafka", "kafkashaded.org.apache.kafka"

# Limits of one poll (a consumer's request for messages) in decompressed bytes: if few messages are pending, if many
# are, and after a failed batch.
# Spark asks the broker for its offsets twice per poll, so small polls of many messages take half of bronze's CPU time.
# By default a poll has up to 500 records. Each topic-partition that is being read has two polls in memory.
POLLED_BYTES = 320 * 1024 * 1024
POLLED_BYTES_OF_MANY = 5_000 * 1024 * 1024
POLLED_BYTES_AFTER_FAILURE = 80 * 1024 * 1024
# After a failed batch, the limit for one poll of every topic-partition together. Twice as much is in memory.
POLLED_BYTES_IN_ALL = 320 * 1024 * 1024
_KAFKA_POLLED = 500

READ_COMMITTED = {"isolation.level": "read_committed"}
"""Option of every consumer: it skips records of aborted transactions and stops before those of open ones."""

# Options that both clients have, with librdkafka's names. Other keys of `kafka.options` are for Spark's consumer only,
# because librdkafka rejects properties it does not know.
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


def build_java_client_options(settings: Settings) -> dict[str, str]:
    """Returns the options with which a Java client connects to Kafka, by Kafka's names.

    Raises:
        ConfigError: A certificate or key cannot be used.
    """
    refresh = str(milliseconds(settings.bronze.topic_refresh))
    options, security = {"metadata.max.age.ms": refresh, **settings.kafka.options}, settings.kafka.security
    if security is not None:
        options |= build_java_security_options(security, PLATFORM_PACKAGE if is_on_databricks() else PACKAGE)
    return options | {"bootstrap.servers": settings.kafka.bootstrap_servers}


def build_spark_kafka_options(settings: Settings) -> dict[str, str]:
    """Returns the connection options of Spark's Kafka source and sink: the Java client's, each prefixed with `kafka.`.

    The caller adds the topics and starting offsets (`subscribePattern`, `startingOffsets`). With a service credential,
    Databricks logs in itself and rejects login options of the client, so they are left out.
    """
    options, credential = build_java_client_options(settings), settings.kafka.service_credential
    if credential is None:
        return {f"kafka.{key}": value for key, value in options.items()}
    without_login = {f"kafka.{key}": value for key, value in options.items() if not key.startswith(_LOGIN)}
    return without_login | {"databricks.serviceCredential": credential}


def build_spark_source_options(settings: Settings, polled_bytes: int = POLLED_BYTES) -> dict[str, str]:
    """Returns the options of Spark's Kafka source: for the connection, and a limit for the messages of each poll.

    Args:
        settings: The pipeline's settings.
        polled_bytes: The largest size of one poll's messages in bytes. It holds even if all messages have the maximum
            size.
    """
    records = max(1, polled_bytes // settings.capture.max_message_bytes)
    limit = {"kafka.max.poll.records": str(min(records, _KAFKA_POLLED))}
    return (
        limit | build_spark_kafka_options(settings) | {f"kafka.{key}": value for key, value in READ_COMMITTED.items()}
    )


def build_librdkafka_consumer_config(settings: Settings, group: str) -> dict[str, str | int | bool]:
    """Returns the librdkafka properties of a consumer that reads the same records as bronze and commits no offsets.

    Args:
        settings: The pipeline's settings.
        group: The end of the consumer group's name, which appears in the broker's log.
    """
    consumer: dict[str, str | int | bool] = {"group.id": f"sessionlake-{group}", "enable.auto.commit": False}
    consumer["log_level"] = 2  # errors are raised as exceptions, so they need not be logged
    return {**build_librdkafka_client_config(settings), **READ_COMMITTED, **consumer}


def build_librdkafka_client_config(settings: Settings) -> dict[str, str]:
    """Returns the configured connection as librdkafka properties, for `confluent_kafka` clients.

    Security options are translated. Options that tune Spark's consumer are left out.

    Raises:
        ConfigError: A file cannot be used, or a key store or trust store has a format that only Java reads.
    """
    options = settings.kafka.options
    config = {"bootstrap.servers": settings.kafka.bootstrap_servers}
    config |= {_SHARED[key]: value for key, value in options.items() if key in _SHARED}
    if config.get("ssl.endpoint.identification.algorithm") == "":
        config["ssl.endpoint.identification.algorithm"] = "none"  # Java's option for this is an empty value
    login = parse_credentials(options.get("sasl.jaas.config", ""))
    config |= {f"sasl.{name}": login[name] for name in ("username", "password") if name in login}
    security = settings.kafka.security
    return (
        config
        | _build_certificate_store_options(options)
        | ({} if security is None else build_librdkafka_security_options(security))
    )


def require_reachable_broker(settings: Settings) -> None:
    """Checks that a Kafka broker answers at `kafka.bootstrap_servers` and accepts this client.

    Raises:
        BrokerError: No broker answers within seconds.
        KafkaAccessError: The broker rejects this client, or its certificate is not trusted.
        ConfigError: `kafka.bootstrap_servers` is not `host:port`, or the security settings cannot be used.
    """
    host, port = _find_listening_server(settings)
    failure = _request_metadata(settings)
    if failure is None:
        return
    if failure.refused:
        raise create_client_rejected_error(settings, failure.message)
    greeting, tls = probe_tls(host, port, _CONNECT_SECONDS), uses_tls(build_java_client_options(settings))
    if greeting is not None and not tls:
        raise BrokerError(
            f"Kafka at {host}:{port} requires TLS, but {join_setting_names(settings, 'protocol')} does not enable it",
            fix="Set this key to SSL, or to SASL_SSL with a login",
        )
    if greeting == "certificate":
        raise KafkaAccessError(
            f"Kafka at {host}:{port} requires a client certificate, and does not trust the one that is configured",
            fix=f"Correct {join_setting_names(settings, 'certificate', 'key')}",
        )
    raise BrokerError(
        f"a program listens at {host}:{port}, but does not answer as Kafka does",
        fix="Wait if a broker is just starting there. Otherwise stop that program, or correct kafka.bootstrap_servers",
    )


def require_listening_server(settings: Settings) -> None:
    """Checks that a server listens at `kafka.bootstrap_servers`, with TLS if that is configured.

    Raises:
        BrokerError: Nothing listens, or the server does not use TLS.
        KafkaAccessError: The server's certificate is not trusted, or is for another host.
        ConfigError: `kafka.bootstrap_servers` is not `host:port`, or a certificate cannot be used.
    """
    _find_listening_server(settings)


def create_client_rejected_error(settings: Settings, message: str) -> KafkaAccessError:
    """Returns the error for a client that Kafka rejects, with the setting to correct.

    Args:
        settings: The pipeline's settings.
        message: The Kafka client's error text. Secrets in it are hidden.
    """
    servers, shown = settings.kafka.bootstrap_servers, hide_secrets(settings, message)[:_LONGEST]
    security, what = settings.kafka.security, f"Kafka at {servers} refuses this client"
    if re.search("certificate verify failed|certification path|No (?:subject alternative|name matching)", shown):
        what = f"no connection to Kafka at {servers}"
        why = "This client does not trust the server's certificate"
        fix = f"Correct {join_setting_names(settings, 'ca')}, or the host name in kafka.bootstrap_servers"
    elif security is None:
        why = "Kafka requires a login, or a right that this client does not have"
        fix = f"Correct {join_setting_names(settings, 'protocol')}, or grant this client the right to describe topics"
    elif security.mechanism is None:
        why = "Kafka requires another client certificate"
        fix = f"Correct {join_setting_names(settings, 'certificate', 'key')}"
    elif security.mechanism is Mechanism.OAUTHBEARER:
        why = "Kafka does not accept this client's token, or the token cannot be fetched"
        fix = f"Correct {join_setting_names(settings, 'token_url', 'client_id', 'client_secret')}"
    else:
        why = "Kafka does not accept this login, or it lacks a right"
        login = join_setting_names(settings, "username", "password")
        fix = f"Correct {login}, or grant the user {security.username} the right to describe topics"
    return KafkaAccessError(f"{what} ({shown})", why=why, fix=fix)


def _build_certificate_store_options(options: dict[str, str]) -> dict[str, str]:
    """Returns librdkafka's properties for the trust store and key store in `kafka.options`.

    Raises:
        ConfigError: A store has a format that only Java reads.
    """
    config = {}
    for store, target in (("truststore", "ssl.ca.location"), ("keystore", "ssl.keystore.location")):
        location = options.get(f"ssl.{store}.location")
        if location is None:
            continue
        kind = options.get(f"ssl.{store}.type", "JKS").upper()
        usable = "PEM" if store == "truststore" else "PKCS12"
        if kind != usable:
            raise ConfigError(
                f"kafka.options: the store in ssl.{store}.location is of type {kind}, which only Java can read",
                why="Some commands use Kafka's C client, librdkafka",
                fix=f"Convert the store to {usable}, and set ssl.{store}.type: {usable}",
            )
        config[target] = location
        if store == "keystore" and "ssl.keystore.password" in options:
            config["ssl.keystore.password"] = options["ssl.keystore.password"]
    return config


def _find_listening_server(settings: Settings) -> tuple[str, int]:
    """Returns host and port of the first configured server that accepts a connection.

    Also checks its TLS, if TLS is used.
    """
    failures = []
    for host, port in parse_bootstrap_servers(settings):
        failure = _try_to_connect(host, port)
        if failure is None:
            _require_configured_tls(settings, host, port)
            return host, port
        failures.append(f"{host}:{port} {failure}")
    raise _create_unreachable_error(settings, "; ".join(failures))


def _try_to_connect(host: str, port: int) -> str | None:
    """Connects to a server. Returns None if it accepts, else the reason why not."""
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
            return None
    except OSError as error:
        return (error.strerror or str(error)).lower()


def _require_configured_tls(settings: Settings, host: str, port: int) -> None:
    """Checks that a server uses TLS with a trusted certificate, if the settings require TLS."""
    options = build_java_client_options(settings)
    found = find_tls_fault(host, port, options, _CONNECT_SECONDS) if uses_tls(options) else None
    if found is None:
        return
    fault, why = found
    server, protocol = f"Kafka at {host}:{port}", options["security.protocol"]
    errors: dict[str, SessionlakeError] = {
        "plain": BrokerError(
            f"{server} does not use TLS ({why}), but {join_setting_names(settings, 'protocol')} is {protocol}",
            fix="Correct that key, or the port in kafka.bootstrap_servers",
        ),
        "untrusted": KafkaAccessError(
            f"{server} has a certificate that this client does not trust ({why})",
            fix=f"Add the authority that signed the certificate to {join_setting_names(settings, 'ca')}",
        ),
        "other_host": KafkaAccessError(
            f"{server} has a certificate that is for another host name ({why})",
            fix="Set kafka.bootstrap_servers to a host name that is in the certificate",
        ),
    }
    raise errors[fault]


def _request_metadata(settings: Settings) -> BrokerMetadataFailure | None:
    """Asks Kafka for its topics. Returns None if it answers, or if librdkafka cannot be used here; else the failure."""
    try:
        import confluent_kafka  # noqa: F401  (a Databricks cluster has only Spark's client)

        config = build_librdkafka_client_config(settings)
    except (ImportError, ConfigError):
        return None  # the server listens, and Spark's own client reports any other problem
    return request_broker_metadata(config, _METADATA_SECONDS)


def _create_unreachable_error(settings: Settings, reason: str) -> BrokerError:
    local = all(is_loopback(host) for host, _ in parse_bootstrap_servers(settings))
    return BrokerError(
        f"no Kafka broker answers at {settings.kafka.bootstrap_servers} ({reason})",
        fix="Start the embedded broker with `sessionlake broker up`, or correct kafka.bootstrap_servers"
        if local
        else "Start the broker, let the network reach it, or correct kafka.bootstrap_servers",
    )
