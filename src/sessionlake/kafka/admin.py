"""Asks Kafka about topics and offsets through the Java client in Spark's JVM.

Spark's Kafka source uses the same client, so both have the same network access and login.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sessionlake.errors import BrokerError, MachineSetupError, UnknownTopicError
from sessionlake.kafka.clients import (
    PACKAGE,
    PLATFORM_PACKAGE,
    build_java_client_options,
    create_client_rejected_error,
    require_listening_server,
)
from sessionlake.kafka.security import hide_secrets
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

_PACKAGES = (PACKAGE, PLATFORM_PACKAGE)
_SECONDS = 20
_REFUSALS = ("AuthenticationException", "AuthorizationException")
_UNKNOWN = ("UnknownTopicOrPartitionException",)
# Brokers that have no topic ids send this one.
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_LISTED = re.compile(r"\(name=([A-Za-z0-9._-]+), topicId=([A-Za-z0-9_-]+), internal=\w+\)")


def find_kafka_jvm_package(jvm: Any) -> Any:
    """Returns the JVM package of Kafka's Java client: the original one, or the renamed copy in Databricks' runtime.

    Raises:
        MachineSetupError: Neither package is accessible.
    """
    from py4j.java_gateway import JavaClass

    for name in _PACKAGES:
        package = jvm
        for part in name.split("."):
            package = getattr(package, part)
        if isinstance(package.clients.admin.AdminClient, JavaClass):
            return package
    raise MachineSetupError(
        f"Spark has no accessible Kafka client (looked for clients.admin.AdminClient in {' and '.join(_PACKAGES)})",
        why="Bronze needs it to ask Kafka about topics",
        fix="Run bronze on a cluster with dedicated access mode and Spark's Kafka connector",
    )


class KafkaAdmin:
    """An open Kafka admin client. Call `close` when done.

    Every method raises a `BrokerError` if Kafka does not answer, a `KafkaAccessError` if it rejects this client, and an
    `UnknownTopicError` if it does not have a topic that was named.

    Attributes:
        away: True if Kafka did not answer the last request.

    Raises:
        MachineSetupError: Spark has no accessible Kafka client.
    """

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._jvm: Any = spark._jvm  # noqa: SLF001  (Spark and Delta access the JVM in the same way)
        self._settings = settings
        self.away = False
        self._kafka = find_kafka_jvm_package(self._jvm)
        properties = self._jvm.java.util.Properties()
        for key, value in build_java_client_options(settings).items():
            properties.setProperty(key, value)
        with self._translate_errors():
            self._client = self._kafka.clients.admin.AdminClient.create(properties)

    def close(self) -> None:
        """Closes the client's connections at once and abandons open requests."""
        self._client.close(self._jvm.java.time.Duration.ZERO)

    def read_topic_ids(self) -> dict[str, str | None]:
        """Returns the id of each topic that this client may see, by topic name.

        Kafka gives a topic its id when it is created. The id is None if the broker has no topic ids.
        """
        with self._translate_errors():
            listings = self._wait_for_result(self._client.listTopics().listings())
            # Parsing one text avoids a call into the JVM for each property of each topic.
            found: dict[str, str] = dict(_LISTED.findall(listings.toString()))
            if len(found) != listings.size():
                found = {item.name(): item.topicId().toString() for item in listings}
        return {name: None if topic_id == _NO_ID else topic_id for name, topic_id in found.items()}

    def list_partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Returns topic and partition number of each partition of these topics. All topics must exist."""
        with self._translate_errors():
            described = self._wait_for_result(
                self._client.describeTopics(self._create_java_list(topics)).allTopicNames()
            )
            return [(name, number) for name in described for number in range(described[name].partitions().size())]

    def read_first_and_end_offsets(
        self, topic_partitions: Iterable[TopicPartition], *, only_stable: bool = False
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Returns the first offset and the end offset of each topic-partition. The end is one past the last offset.

        Args:
            topic_partitions: The topic-partitions, which must exist.
            only_stable: True if the end is the last stable offset: where the first open transaction
                starts.
        """
        asked = list(topic_partitions)
        spec = self._kafka.clients.admin.OffsetSpec
        firsts = self._list_offsets(asked, spec.earliest())
        ends = self.read_last_stable_offsets(asked) if only_stable else self._list_offsets(asked, spec.latest())
        return {topic_partition: (firsts[topic_partition], ends[topic_partition]) for topic_partition in asked}

    def read_last_stable_offsets(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the last stable offset of each of these topic-partitions, which must exist.

        A `read_committed` consumer reads the messages before this offset. Open transactions start at it or after it.
        """
        level = self._kafka.common.IsolationLevel.READ_COMMITTED
        latest = self._kafka.clients.admin.OffsetSpec.latest()
        return dict(
            self._list_offsets([*topic_partitions], latest, self._kafka.clients.admin.ListOffsetsOptions(level))
        )

    def is_compacted(self, topic: str) -> bool:
        """Returns True if the topic is compacted: Kafka may then remove messages between others. The topic must exist.

        Raises:
            KafkaAccessError: This client may not read the topic's settings.
        """
        with self._translate_errors():
            config = self._kafka.common.config
            resource = config.ConfigResource(getattr(config, "ConfigResource$Type").TOPIC, topic)
            found = self._wait_for_result(self._client.describeConfigs(self._create_java_list([resource])).all())
            return "compact" in found[resource].get("cleanup.policy").value()

    def _list_offsets(
        self, topic_partitions: list[TopicPartition], spec: Any, *options: Any
    ) -> Mapping[TopicPartition, int]:
        """Returns, by topic-partition, the offset that Kafka reports.

        Args:
            topic_partitions: The topic-partitions.
            spec: Kafka's `OffsetSpec`: the earliest or the latest offset.
            options: Kafka's `ListOffsetsOptions`, or nothing.
        """
        with self._translate_errors():
            request = self._jvm.java.util.HashMap()
            for topic, number in topic_partitions:
                request.put(self._kafka.common.TopicPartition(topic, number), spec)
            found = self._wait_for_result(self._client.listOffsets(request, *options).all())
            return {(item.topic(), item.partition()): found[item].offset() for item in found}

    def _create_java_list(self, items: Iterable[Any]) -> Any:
        listed = self._jvm.java.util.ArrayList()
        for item in items:
            listed.add(item)
        return listed

    def _wait_for_result(self, future: Any) -> Any:
        """Returns the result of a Java future. Raises a `Py4JError` if it is not there within 20 seconds."""
        return future.get(_SECONDS, self._jvm.java.util.concurrent.TimeUnit.SECONDS)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turns py4j's errors in the block into a `BrokerError`, `KafkaAccessError` or `UnknownTopicError`."""
        from py4j.protocol import Py4JError

        if self.away:  # a connection attempt fails at once, where the client would wait for its timeout
            require_listening_server(self._settings)
        try:
            yield
        except Py4JError as error:
            # The last cause is the reason. The exceptions before it only wrap it.
            lines = [line for line in str(error).splitlines() if "Exception" in line and not line.startswith("\t")]
            if self._has_cause(error, _REFUSALS):
                raise create_client_rejected_error(
                    self._settings, (lines or [str(error)])[-1].removeprefix("Caused by").strip(": ")
                ) from error
            unknown = self._has_cause(error, _UNKNOWN)
            self.away = not unknown
            message = hide_secrets(self._settings, (lines or [str(error)])[0].strip(": "))[:300]
            servers = self._settings.kafka.bootstrap_servers
            if unknown:
                raise UnknownTopicError(
                    f"Kafka at {servers} does not know a topic ({message})",
                    fix="If the topic was just created, run the command again. Otherwise correct its name",
                ) from error
            raise BrokerError(
                f"Kafka at {servers} does not answer a question about its topics ({message})",
                why="Bronze asks for the topics before it reads",
                fix="Check that the broker runs (`sessionlake doctor`), and run the command again",
            ) from error
        self.away = False

    def _has_cause(self, error: Py4JError, names: Iterable[str]) -> bool:
        """Returns True if the error or one of its causes has one of these classes of Kafka's `common.errors`."""
        kinds = [f"{self._kafka._fqn}.common.errors.{name}" for name in names]  # noqa: SLF001  (py4j's own name)
        cause = getattr(error, "java_exception", None)
        while cause is not None:
            if any(self._jvm.py4j.reflection.TypeUtil.isInstanceOf(kind, cause) for kind in kinds):
                return True
            cause = cause.getCause()
        return False
