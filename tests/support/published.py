"""Publishes tables to a broker, and reads the topics as a consumer does."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from sessionlake.cli.publish import publish_changes
from sessionlake.delta.storage.faults import VARIABLE
from sessionlake.kafka.clients import build_librdkafka_client_config
from sessionlake.publish.job import Publication
from sessionlake.settings.model import load_settings
from support.attached import COMMAND, open_to_another

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Message(NamedTuple):
    """A message in the broker."""

    key: bytes
    value: bytes | None
    version: int


class Outgoing:
    """Publishes a home's tables.

    Args:
        spark: The session.
        file: The configuration file.
    """

    def __init__(self, spark: SparkSession, file: Path) -> None:
        self.spark, self.file, self.settings = spark, file, load_settings(file)
        self.said: list[str] = []

    @property
    def client(self) -> dict[str, str]:
        return build_librdkafka_client_config(self.settings)

    def publish(self, table: str, topic: str) -> str:
        """Publishes a table once and returns the last line of output."""
        publication = Publication(table, topic)
        publish_changes(self.spark, self.settings, publication, threading.Event(), once=True, say=self.said.append)
        return self.said[-1]

    def publish_killed(self, table: str, topic: str, place: str) -> subprocess.CompletedProcess[str]:
        """Publishes a table by the command, in a process that dies at a fault point."""
        command = [*COMMAND, "--config", str(self.file), "publish", table, "--topic", topic, "--once"]
        with open_to_another(self.spark) as jvm:
            environment = {**os.environ, **jvm, VARIABLE: place}
            return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    def sent(self, topic: str) -> list[Message]:
        """Returns all messages of the topic, by partition in offset order."""
        consumer, found = Consumer({**self.client, "group.id": "fold"}), []
        for number in consumer.list_topics(topic).topics[topic].partitions:
            end = consumer.get_watermark_offsets(TopicPartition(topic, number))[1]
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
            for _ in range(end):
                message = consumer.poll(20)
                assert message is not None
                assert message.error() is None
                version = dict(message.headers())["sessionlake.version"]
                found.append(Message(message.key(), message.value(), int(version)))
        consumer.close()
        return found


def rows_received(messages: Sequence[Message], key: Sequence[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Returns the rows that a consumer of a compacted topic has: the last value of each key, without deleted ones."""
    last = {message.key: message.value for message in messages}
    rows = [json.loads(value) for value in last.values() if value is not None]
    assert [json.loads(own) for own, value in last.items() if value] == [{n: row[n] for n in key} for row in rows]
    return {tuple(row[name] for name in key): row for row in rows}


def without_replays(messages: Sequence[Message]) -> list[Message]:
    """Returns only messages that are newer than the previous one of their key, by the header."""
    newest: dict[bytes, int] = {}
    kept = []
    for message in messages:
        if message.version > newest.get(message.key, -1):
            newest[message.key] = message.version
            kept.append(message)
    return kept
