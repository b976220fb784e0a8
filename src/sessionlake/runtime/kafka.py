"""Client options of the two Kafka clients in use, Spark's (Java) and librdkafka's, from the one configuration."""

from __future__ import annotations

import re
import socket

from sessionlake.config import Settings, milliseconds
from sessionlake.errors import BrokerError, ConfigError
from sessionlake.laptop.probe import addresses, answers, is_loopback

_CONNECT_SECONDS = 2.0
_METADATA_SECONDS = 5.0
_LOGIN = ("sasl.", "security.protocol")
_JAAS = re.compile(r'\b(?P<key>username|password)\s*=\s*"(?P<value>(?:[^"\\]|\\.)*)"')

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
    """How a Kafka client of the JVM reaches the broker."""
    refresh = str(milliseconds(settings.bronze.topic_refresh))
    options = {"metadata.max.age.ms": refresh, **settings.kafka.options}
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


def client_config(settings: Settings) -> dict[str, str]:
    """The configured connection as librdkafka properties, for `confluent_kafka` clients.

    Security options are translated; the consumer tuning meant for Spark is left out.

    Raises:
        ConfigError: a key or trust store is a Java one, which librdkafka cannot read.
    """
    options = settings.kafka.options
    config = {"bootstrap.servers": settings.kafka.bootstrap_servers}
    config |= {_SHARED[key]: value for key, value in options.items() if key in _SHARED}
    if config.get("ssl.endpoint.identification.algorithm") == "":
        config["ssl.endpoint.identification.algorithm"] = "none"  # Java says it with an empty value
    for found in _JAAS.finditer(options.get("sasl.jaas.config", "")):
        config[f"sasl.{found['key']}"] = re.sub(r"\\(.)", r"\1", found["value"])
    return config | _stores(options)


def require_broker(settings: Settings) -> None:
    """Returns at once if a Kafka broker answers at `kafka.bootstrap_servers`.

    Raises:
        BrokerError: none does, within seconds.
        ConfigError: the key holds no `host:port`.
    """
    require_listener(settings)
    if not _speaks_kafka(settings):
        raise _unreachable(settings, "something listens there but does not answer as Kafka does")


def require_listener(settings: Settings) -> None:
    """Returns at once if anything listens at `kafka.bootstrap_servers`.

    Raises:
        BrokerError: nothing does, within seconds.
        ConfigError: the key holds no `host:port`.
    """
    failures = []
    for host, port in addresses(settings):
        failure = _connect(host, port)
        if failure is None:
            return
        failures.append(f"{host}:{port} {failure}")
    raise _unreachable(settings, "; ".join(failures))


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


def _connect(host: str, port: int) -> str | None:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
            return None
    except OSError as error:
        return (error.strerror or str(error)).lower()


def _speaks_kafka(settings: Settings) -> bool:
    try:
        import confluent_kafka  # noqa: F401  (a Databricks cluster has only Spark's client)

        config = client_config(settings)
    except (ImportError, ConfigError):
        return True  # it listens: the rest Spark's own client will tell
    return answers(config, _METADATA_SECONDS)


def _unreachable(settings: Settings, why: str) -> BrokerError:
    local = all(is_loopback(host) for host, _ in addresses(settings))
    start = "start the embedded broker with `sessionlake broker up`, or " if local else "start or unblock it, or "
    return BrokerError(
        f"no Kafka broker at {settings.kafka.bootstrap_servers} ({why}): {start}correct kafka.bootstrap_servers"
    )
