"""Parses broker addresses, and checks with librdkafka whether a broker answers, before Spark is started."""

from __future__ import annotations

import ipaddress
import re
import time
from dataclasses import dataclass
from typing import Any

from sessionlake.errors import ConfigError
from sessionlake.settings.model import Settings

_LAST_PORT = 65_535
_LOOK_SECONDS = 1.0
_SERVER = re.compile(r"(?:\w+://)?(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:\[\]/]+):(?P<port>\d{1,5})")


def parse_bootstrap_servers(settings: Settings) -> list[tuple[str, int]]:
    """Returns the hosts and ports in `kafka.bootstrap_servers`. IPv6 hosts have no brackets.

    Raises:
        ConfigError: A part is not `host:port`.
    """
    found = []
    for part in settings.kafka.bootstrap_servers.split(","):
        match = _SERVER.fullmatch(part.strip())
        if match is None or not 0 < int(match["port"]) <= _LAST_PORT:
            raise ConfigError(
                f"kafka.bootstrap_servers is {settings.kafka.bootstrap_servers!r}, and {part.strip()!r} "
                "in it is not an address HOST:PORT",
                fix="Write each address like 127.0.0.1:9092, and separate several with commas",
            )
        found.append((match["host"].strip("[]"), int(match["port"])))
    return found


def is_loopback(host: str) -> bool:
    """Returns True if the host is a loopback address or `localhost`. Other names are not looked up and give False."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class BrokerMetadataFailure:
    """Why a request for a broker's metadata failed.

    Attributes:
        refused: True if the broker answered but rejected this client.
        message: Error text of librdkafka; empty if there is none.
    """

    refused: bool = False
    message: str = ""


def does_broker_answer(config: dict[str, str], seconds: float) -> bool:
    """Returns True if a broker sends its metadata to a client with this librdkafka configuration in time."""
    return request_broker_metadata(config, seconds) is None


def request_broker_metadata(config: dict[str, str], seconds: float) -> BrokerMetadataFailure | None:
    """Requests a broker's metadata with a librdkafka client. Returns why that failed; None if it succeeded.

    Args:
        config: Properties of the client.
        seconds: How long to wait for an answer. A rejection ends the wait at once.

    Raises:
        ConfigError: librdkafka rejects the configuration.
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

    # librdkafka keeps trying after these errors, although another attempt cannot succeed.
    final = {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED}  # noqa: SLF001 - the client names its own errors so
    errors: list[Any] = []
    quiet: dict[str, Any] = {"log_level": 0, "error_cb": errors.append}
    try:
        client = AdminClient(config | quiet)
    except KafkaException as error:
        raise ConfigError(
            f"librdkafka, Kafka's C client, rejects kafka.security or kafka.options ({error.args[0].str()})",
            fix="Correct the setting that this message names",
        ) from None
    end = time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        try:
            if client.list_topics(timeout=max(min(left, _LOOK_SECONDS), 0.01)).brokers:
                return None
        except KafkaException:
            pass
        client.poll(0)
        refusals = [error for error in errors if error.code() in final]
        if refusals or left <= 0:
            last = (refusals or errors)[-1:]
            return BrokerMetadataFailure(bool(refusals), last[0].str() if last else "")
