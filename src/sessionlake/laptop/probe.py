"""Where brokers are to be found, and whether one answers there: asked with librdkafka, before Spark is started."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from sessionlake.config import Settings
from sessionlake.errors import ConfigError

_LAST_PORT = 65_535
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


def answers(config: dict[str, str], seconds: float) -> bool:
    """Whether a broker gives its metadata to a librdkafka client with this configuration in time."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    quiet: dict[str, Any] = {"log_level": 0, "error_cb": lambda _error: None}
    try:
        return bool(AdminClient(config | quiet).list_topics(timeout=seconds).brokers)
    except KafkaException:
        return False
