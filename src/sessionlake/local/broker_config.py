"""How the embedded broker is configured: one node, everything kept, idle at no cost."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress

from sessionlake.settings.model import Settings

_PORTS = range(20_000, 32_000)  # beneath those that systems give to connections
_ANY_AGE = str(2**63 - 1)
DATA = "data"
"""The folder of log segments and KRaft metadata, within the one that the broker runs in: a relative path holds no
character that a list of paths, or a file that Java reads as Latin-1, would change."""
_YEAR_MS = 365 * 24 * 3600 * 1000
_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    # One node: nothing to replicate, nobody to wait for.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "true",
    "num.partitions": "2",
    # Captures are kept until the home is removed, and may be old. Spark cannot read a timestamp that is far enough off.
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    "log.message.timestamp.type": "CreateTime",
    "log.message.timestamp.before.max.ms": str(100 * _YEAR_MS),
    "log.message.timestamp.after.max.ms": str(_YEAR_MS),
    # Few threads and no idle metadata records: beside Spark, an idle broker should cost nothing.
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "num.recovery.threads.per.data.dir": "2",
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    "metadata.max.idle.interval.ms": "0",
}


def server_properties(settings: Settings, host: str, port: int) -> str:
    """Text of the broker's `server.properties`.

    Args:
        host: loopback host that clients connect to; an IPv6 one without brackets.
    """
    shown = f"[{host}]" if ":" in host else host
    controller = f"127.0.0.1:{free_port(other_than=port)}"
    # Beyond what the pipeline accepts, so that a message it must quarantine as too large can be sent at all.
    largest = max(12 * 1024 * 1024, settings.capture.max_message_bytes + 2 * 1024 * 1024)
    own = {
        "controller.quorum.voters": f"1@{controller}",
        "listeners": f"PLAINTEXT://{shown}:{port},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{shown}:{port}",
        "log.dirs": DATA,
        "message.max.bytes": str(largest),
        "replica.fetch.max.bytes": str(largest),
    }
    return "".join(f"{key}={value}\n" for key, value in (_PROPERTIES | own).items())


def free_port(other_than: int = 0) -> int:
    """A port that nobody listens on, and that is given to no connection before somebody does."""
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):  # it is in use
            probe.bind(("127.0.0.1", port))
            if port != other_than:
                return port
