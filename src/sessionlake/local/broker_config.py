"""Configuration of the embedded broker: one node, no retention limits, and almost no work while idle."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress

from sessionlake.settings.model import Settings

_PORTS = range(20_000, 32_000)  # below the ports that systems assign to outgoing connections
_ANY_AGE = str(2**63 - 1)
DATA = "data"
"""Folder of log segments and KRaft metadata, relative to the broker's working folder.

An absolute path could have characters that break a list of paths, or a file that Java reads as Latin-1.
"""
_YEAR_MS = 365 * 24 * 3600 * 1000
_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    # One node has no replicas and no group members to wait for.
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
    # Messages stay until the home is removed, and their timestamps may be old. Spark cannot read a timestamp far
    # outside this range.
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    "log.message.timestamp.type": "CreateTime",
    "log.message.timestamp.before.max.ms": str(100 * _YEAR_MS),
    "log.message.timestamp.after.max.ms": str(_YEAR_MS),
    # Few threads and no metadata records while idle, so that the broker takes no CPU from Spark.
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "num.recovery.threads.per.data.dir": "2",
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    "metadata.max.idle.interval.ms": "0",
}


def build_kafka_server_properties(settings: Settings, host: str, port: int) -> str:
    """Returns the text of the embedded broker's configuration file, `server.properties`.

    Args:
        settings: The configuration. Messages up to somewhat more than `capture.max_message_bytes` are accepted.
        host: Loopback host that clients connect to. Give an IPv6 address without brackets.
        port: Port that clients connect to.
    """
    shown = f"[{host}]" if ":" in host else host
    controller = f"127.0.0.1:{find_free_port(excluded_port=port)}"
    # Larger than the pipeline's own limit, so that producers can send a message that the pipeline then quarantines.
    largest = max(12 * 1024 * 1024, settings.capture.max_message_bytes + 2 * 1024 * 1024)
    address_properties = {
        "controller.quorum.voters": f"1@{controller}",
        "listeners": f"PLAINTEXT://{shown}:{port},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{shown}:{port}",
        "log.dirs": DATA,
        "message.max.bytes": str(largest),
        "replica.fetch.max.bytes": str(largest),
    }
    return "".join(f"{key}={value}\n" for key, value in (_PROPERTIES | address_properties).items())


def find_free_port(excluded_port: int = 0) -> int:
    """Returns a free port on 127.0.0.1, outside the range that the system assigns to outgoing connections.

    Args:
        excluded_port: A port that is not returned even if it is free.
    """
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):  # it is in use
            probe.bind(("127.0.0.1", port))
            if port != excluded_port:
                return port
