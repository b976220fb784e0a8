"""The settings that say where the messages come from, and what becomes of topics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self

from pydantic import ByteSize, Field, SecretStr, field_validator, model_validator

from sessionlake.settings.capture import Duration, Regex, Section


class SourceKind(StrEnum):
    """What bronze reads."""

    KAFKA = "kafka"
    ARCHIVE = "archive"
    KINESIS = "kinesis"


class ArchiveSettings(Section):
    """Captures on disk (see `sessionlake.bronze.archive`)."""

    path: str = Field(min_length=1)
    """A folder of `.zip` and `.gz` files, which driver and executors see under the same path."""
    max_bytes_per_trigger: ByteSize = Field(ByteSize(128 * 1024 * 1024), gt=0)
    """Of files, as they are stored: about what a batch takes in, and one file at least."""


class KinesisSettings(Section):
    """Kinesis, by the connector that Databricks' runtime has."""

    streams: str = Field(min_length=1)
    """Names, with commas between them; each is a topic."""
    region: str = Field(min_length=1)
    """AWS region of the streams."""
    options: dict[str, str] = Field(default_factory=dict, repr=False)
    """Any further option of the connector: a login, or `serviceCredential`."""


class OnTopicChange(StrEnum):
    """What bronze does about a topic that was deleted, created anew, or cut before it was read."""

    FAIL = "fail"
    FORGET = "forget"
    RESTART = "restart"


class Protocol(StrEnum):
    """What is spoken with a broker, by Kafka's own names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


class Mechanism(StrEnum):
    """How a client logs in under a SASL protocol."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


_LOGIN = ("username", "password")
_TOKEN = ("token_url", "client_id", "client_secret")
_TLS = ("ca", "certificate", "key", "key_password")
# What a section `security` says is said there alone.
_SAID_BY_SECURITY = re.compile(
    r"security\.protocol|sasl\.(mechanism|jaas\.config|login\.callback.*|oauthbearer\..*)"
    r"|ssl\.((truststore|keystore)\..*|key\.password)"
)

_ISOLATION, _COMMITTED = "isolation.level", "read_committed"


class KafkaSecurity(Section):
    """How clients reach a broker that is secured; each of them, in Java and in Python, is told the same."""

    protocol: Protocol
    """How the broker is spoken to."""
    mechanism: Mechanism | None = None
    """How the client logs in, where the protocol is SASL."""
    username: str | None = Field(None, min_length=1)
    """With `password`, for PLAIN and SCRAM."""
    password: SecretStr | None = Field(None, min_length=1)
    """With `username`, for PLAIN and SCRAM."""
    token_url: str | None = Field(None, pattern=r"^https?://\S+$")
    """Where OAUTHBEARER gets its tokens, by the grant of client credentials."""
    client_id: str | None = Field(None, min_length=1)
    """Names the client to `token_url`."""
    client_secret: SecretStr | None = Field(None, min_length=1)
    """Proves the client to `token_url`."""
    scope: str | None = Field(None, min_length=1)
    """What the token is asked for, where `token_url` needs that."""
    ca: str | None = Field(None, min_length=1)
    """Authorities that sign brokers' certificates: a PEM file, or its text; without it, those that the client knows."""
    certificate: str | None = Field(None, min_length=1)
    """The client's own, for a broker that asks for one (mTLS): a PEM file, or its text, with its chain."""
    key: SecretStr | None = Field(None, min_length=1)
    """Of `certificate`: a PEM file, or its text, in PKCS#8."""
    key_password: SecretStr | None = Field(None, min_length=1)
    """Opens `key`, where it is encrypted."""

    @property
    def tls(self) -> bool:
        """Whether what is sent is encrypted."""
        return self.protocol in {Protocol.SSL, Protocol.SASL_SSL}

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        sasl = self.protocol in {Protocol.SASL_PLAINTEXT, Protocol.SASL_SSL}
        if sasl and self.mechanism is None:
            raise ValueError(f"{self.protocol} needs mechanism: {', '.join(Mechanism)}")
        if not sasl:
            self._refuse(("mechanism", *_LOGIN, *_TOKEN, "scope"), f"{self.protocol} has no login; SASL_SSL has one")
        elif self.mechanism is Mechanism.OAUTHBEARER:
            self._need(_TOKEN, f"{self.mechanism}")
            self._refuse(_LOGIN, f"{self.mechanism} logs in by client_id and client_secret")
        else:
            self._need(_LOGIN, f"{self.mechanism}")
            self._refuse((*_TOKEN, "scope"), f"{self.mechanism} logs in by username and password")
        if not self.tls:
            self._refuse(_TLS, f"{self.protocol} knows no certificates; SSL and SASL_SSL do")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together: name both, or neither")
        if self.key_password is not None and self.key is None:
            raise ValueError("key_password is of a key, and there is none")
        return self

    def _need(self, names: Iterable[str], who: str) -> None:
        if missing := [name for name in names if getattr(self, name) is None]:
            raise ValueError(f"{who} needs {' and '.join(missing)}")

    def _refuse(self, names: Iterable[str], why: str) -> None:
        if given := [name for name in names if getattr(self, name) is not None]:
            raise ValueError(f"{' and '.join(given)}: {why}")


class KafkaSettings(Section):
    """Where the messages come from."""

    bootstrap_servers: str = Field("127.0.0.1:9092", min_length=1)
    """Brokers to ask first, as `host:port`, with commas between them."""
    topic_pattern: Regex = r"capture\..+"
    """Regular expression of the whole names of the topics that bronze reads."""
    options: dict[str, str] = Field(default_factory=dict, repr=False)
    """Any further client option, without its `kafka.` prefix: `security.protocol: SASL_SSL`. A secret holds them as one
    JSON object."""
    security: KafkaSecurity | None = None
    """How a secured broker is reached; in `options`, the same can be said in Kafka's own words for Java clients."""
    service_credential: str | None = Field(None, min_length=1)
    """A Unity Catalog service credential: messages are read and sent by it, not by `security` or `options`."""
    allow_offset_gaps: bool = False
    """True for compacted topics, whose offsets have gaps where Kafka removed messages. Transactions need it not."""
    on_topic_change: OnTopicChange = OnTopicChange.FAIL
    """For topics that are deleted, created anew, or cut by retention before they were read."""
    inactive_after: Duration = timedelta(days=7)
    """A topic without a message for so long leaves the subscription until one comes."""

    @field_validator("options", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise ValueError("as a text, the options are one JSON object") from None
        if not isinstance(value, dict):
            return value
        spelled = {True: "true", False: "false"}
        return {str(k).removeprefix("kafka."): spelled[v] if isinstance(v, bool) else str(v) for k, v in value.items()}

    @model_validator(mode="after")
    def _reads_committed(self) -> Self:
        level = self.options.get(_ISOLATION, _COMMITTED)
        if level != _COMMITTED:
            raise ValueError(
                f"options has {_ISOLATION}: {level}, which would turn records of aborted transactions into rows; "
                f"only {_COMMITTED} is allowed, and is the default"
            )
        return self

    @model_validator(mode="after")
    def _is_said_once(self) -> Self:
        twice = [key for key in self.options if self.security is not None and _SAID_BY_SECURITY.fullmatch(key)]
        if twice:
            raise ValueError(f"options has {', '.join(sorted(twice))}, which security says: leave it to one of them")
        return self


class BronzeSettings(Section):
    """A source to `bronze.messages`."""

    source: SourceKind = SourceKind.KAFKA
    """Where messages come from."""
    archive: ArchiveSettings | None = None
    kinesis: KinesisSettings | None = None
    max_offsets_per_trigger: int = Field(1_000_000, gt=0)
    """Most messages of a batch."""
    trigger: Duration = timedelta(seconds=1)
    """How long after the start of a batch the next one starts."""
    topic_refresh: Duration = timedelta(seconds=3)
    """How soon a new topic or partition is noticed."""
    silent_after: Duration | None = timedelta(hours=1)
    """A topic-partition without a message for so long, and for `capture.session_timeout`, is noted as silent: stream
    time goes on there, so that its sessions expire. None: never."""

    @model_validator(mode="after")
    def _has_its_source(self) -> Self:
        if self.source is not SourceKind.KAFKA and getattr(self, self.source) is None:
            raise ValueError(f"source is {self.source}: say more of it in bronze.{self.source}")
        return self
