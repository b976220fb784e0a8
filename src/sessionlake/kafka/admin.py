"""What Kafka says of its topics, asked through Spark's own client: it reaches what Spark's source reaches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sessionlake.errors import BrokerError, MachineError, UnknownTopicError
from sessionlake.kafka.clients import PACKAGE, PLATFORM_PACKAGE, java_client_options, refused, require_listener
from sessionlake.kafka.security import without_secrets
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

_PACKAGES = (PACKAGE, PLATFORM_PACKAGE)
_SECONDS = 20
_REFUSALS = ("AuthenticationException", "AuthorizationException")
_UNKNOWN = ("UnknownTopicOrPartitionException",)
# What brokers that know no topic ids say.
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_LISTED = re.compile(r"\(name=([A-Za-z0-9._-]+), topicId=([A-Za-z0-9_-]+), internal=\w+\)")


def kafka_package(jvm: Any) -> Any:
    """The JVM package of Kafka's Java client: its own, or the platform's copy of it.

    Raises:
        MachineError: there is none whose classes can be reached.
    """
    from py4j.java_gateway import JavaClass

    for name in _PACKAGES:
        package = jvm
        for part in name.split("."):
            package = getattr(package, part)
        if isinstance(package.clients.admin.AdminClient, JavaClass):
            return package
    raise MachineError(
        "Spark has no Kafka client that can be reached (looked for clients.admin.AdminClient in "
        f"{' and '.join(_PACKAGES)}): run bronze on a cluster of one user, with Spark's Kafka connector"
    )


class KafkaAdmin:
    """An open admin client; close it when done.

    Attributes:
        away: whether Kafka did not answer the last question.

    Raises:
        MachineError: Spark has no Kafka client whose classes can be reached.
        BrokerError: by every question, if Kafka does not answer, or not yet.
        UnknownTopicError: by every question about a topic, if Kafka does not have it.
        AccessError: by every question, if it refuses this client.
    """

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._jvm: Any = spark._jvm  # noqa: SLF001  (the way to the JVM that Spark and Delta take themselves)
        self._settings = settings
        self.away = False
        self._kafka = kafka_package(self._jvm)
        properties = self._jvm.java.util.Properties()
        for key, value in java_client_options(settings).items():
            properties.setProperty(key, value)
        with self._answered():
            self._client = self._kafka.clients.admin.AdminClient.create(properties)

    def close(self) -> None:
        """Ends the client's connections; questions that were not answered are given up."""
        self._client.close(self._jvm.java.time.Duration.ZERO)

    def topic_ids(self) -> dict[str, str | None]:
        """Every topic that this client may see, with the id that Kafka gave it when it was created."""
        with self._answered():
            listings = self._get(self._client.listTopics().listings())
            # In one text: each of a topic's properties would be a call of its own.
            found: dict[str, str] = dict(_LISTED.findall(listings.toString()))
            if len(found) != listings.size():
                found = {item.name(): item.topicId().toString() for item in listings}
        return {name: None if topic_id == _NO_ID else topic_id for name, topic_id in found.items()}

    def partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Every partition of these topics, which must exist."""
        with self._answered():
            described = self._get(self._client.describeTopics(self._list(topics)).allTopicNames())
            return [(name, number) for name in described for number in range(described[name].partitions().size())]

    def offsets(
        self, places: Iterable[TopicPartition], *, committed: bool = False
    ) -> dict[TopicPartition, tuple[int, int]]:
        """First offset and end of partitions, which must exist.

        Args:
            committed: whether they end as in `committed_ends`.
        """
        asked = list(places)
        spec = self._kafka.clients.admin.OffsetSpec
        firsts = self._offsets(asked, spec.earliest())
        ends = self.committed_ends(asked) if committed else self._offsets(asked, spec.latest())
        return {place: (firsts[place], ends[place]) for place in asked}

    def committed_ends(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The last stable offset of partitions, which must exist: where a `read_committed` consumer stops for now."""
        level = self._kafka.common.IsolationLevel.READ_COMMITTED
        latest = self._kafka.clients.admin.OffsetSpec.latest()
        return dict(self._offsets([*places], latest, self._kafka.clients.admin.ListOffsetsOptions(level)))

    def is_compacted(self, topic: str) -> bool:
        """Whether Kafka may remove messages of this topic, which must exist, though later ones stay.

        Raises:
            AccessError: this client may not read the topic's settings.
        """
        with self._answered():
            config = self._kafka.common.config
            resource = config.ConfigResource(getattr(config, "ConfigResource$Type").TOPIC, topic)
            found = self._get(self._client.describeConfigs(self._list([resource])).all())
            return "compact" in found[resource].get("cleanup.policy").value()

    def _offsets(self, places: list[TopicPartition], spec: Any, *options: Any) -> Mapping[TopicPartition, int]:
        with self._answered():
            request = self._jvm.java.util.HashMap()
            for topic, number in places:
                request.put(self._kafka.common.TopicPartition(topic, number), spec)
            told = self._get(self._client.listOffsets(request, *options).all())
            return {(item.topic(), item.partition()): told[item].offset() for item in told}

    def _list(self, items: Iterable[Any]) -> Any:
        listed = self._jvm.java.util.ArrayList()
        for item in items:
            listed.add(item)
        return listed

    def _get(self, future: Any) -> Any:
        return future.get(_SECONDS, self._jvm.java.util.concurrent.TimeUnit.SECONDS)

    @contextmanager
    def _answered(self) -> Iterator[None]:
        from py4j.protocol import Py4JError

        if self.away:  # its client would wait out its time; a connection tells at once
            require_listener(self._settings)
        try:
            yield
        except Py4JError as error:
            # The last cause says why; what is before it, that something failed.
            lines = [line for line in str(error).splitlines() if "Exception" in line and not line.startswith("\t")]
            if self._is_of(error, _REFUSALS):
                raise refused(
                    self._settings, (lines or [str(error)])[-1].removeprefix("Caused by").strip(": ")
                ) from error
            unknown = self._is_of(error, _UNKNOWN)
            self.away = not unknown
            said = without_secrets(self._settings, (lines or [str(error)])[0].strip(": "))[:300]
            servers = self._settings.kafka.bootstrap_servers
            if unknown:
                raise UnknownTopicError(f"Kafka at {servers} does not know a topic ({said})") from error
            raise BrokerError(
                f"Kafka at {servers} does not say which topics there are ({said}): check that it runs"
            ) from error
        self.away = False

    def _is_of(self, error: Py4JError, names: Iterable[str]) -> bool:
        """Whether one of these errors of Kafka's is what has happened, or its cause."""
        kinds = [f"{self._kafka._fqn}.common.errors.{name}" for name in names]  # noqa: SLF001  (py4j's own name)
        cause = getattr(error, "java_exception", None)
        while cause is not None:
            if any(self._jvm.py4j.reflection.TypeUtil.isInstanceOf(kind, cause) for kind in kinds):
                return True
            cause = cause.getCause()
        return False
