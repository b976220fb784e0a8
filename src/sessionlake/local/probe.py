"""Where brokers are to be found, and whether one answers there: asked with librdkafka, before Spark is started."""

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


def addresses(settings: Settings) -> list[tuple[str, int]]:
    """`kafka.bootstrap_servers` taken apart; an IPv6 host comes without its brackets.

    Raises:
        ConfigError: a part is not `host:port`.
    """
    found = []
    for part in settings.kafka.bootstrap_servers.split(","):
        match = _SERVER.fullmatch(part.strip())
        if match is None or not 0 < int(match["port"]) <= _LAST_PORT:
            raise ConfigError(
                f"kafka.bootstrap_servers = {settings.kafka.bootstrap_servers!r}: {part.strip()!r} is not host:port, "
                "as in 127.0.0.1:9092; separate several with commas"
            )
        found.append((match["host"].strip("[]"), int(match["port"])))
    return found


def is_loopback(host: str) -> bool:
    """Whether the host is this machine's own loopback, without asking a name server."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class NoAnswer:
    """Why a broker gave no metadata.

    Attributes:
        refused: whether it has answered, and does not let this client in.
        told: what librdkafka says; empty if nothing.
    """

    refused: bool = False
    told: str = ""


def answers(config: dict[str, str], seconds: float) -> bool:
    """Whether a broker gives its metadata to a librdkafka client with this configuration in time."""
    return unanswered(config, seconds) is None


def unanswered(config: dict[str, str], seconds: float) -> NoAnswer | None:
    """Why a broker gives no metadata to a librdkafka client with this configuration in time; None if it does.

    Raises:
        ConfigError: librdkafka does not take the configuration.
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

    # What it takes for final; it goes on trying by itself, though nothing will change.
    final = {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED}  # noqa: SLF001 - the client names its own errors so
    said: list[Any] = []
    quiet: dict[str, Any] = {"log_level": 0, "error_cb": said.append}
    try:
        client = AdminClient(config | quiet)
    except KafkaException as error:
        raise ConfigError(f"kafka.security, kafka.options: librdkafka refuses them ({error.args[0].str()})") from None
    end = time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        try:
            if client.list_topics(timeout=max(min(left, _LOOK_SECONDS), 0.01)).brokers:
                return None
        except KafkaException:
            pass
        client.poll(0)
        refusals = [error for error in said if error.code() in final]
        if refusals or left <= 0:
            told = (refusals or said)[-1:]
            return NoAnswer(bool(refusals), told[0].str() if told else "")
