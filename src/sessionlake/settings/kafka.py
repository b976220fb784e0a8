"""Settings of bronze and its sources: Kafka, Kinesis and archives of files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self

from pydantic import ByteSize, Field, SecretStr, field_validator, model_validator

from sessionlake.settings.section import Duration, Regex, SettingsSection


class MessageSourceKind(StrEnum):
    """The kind of source that bronze reads messages from."""

    KAFKA = "kafka"
    ARCHIVE = "archive"
    KINESIS = "kinesis"


class FileArchiveSettings(SettingsSection):
    """Messages in files instead of Kafka, read by `sessionlake.bronze.archive`."""

    path: str = Field(min_length=1)
    """A folder of `.zip` and `.gz` files. It must have the same path on the driver and the executors."""
    max_bytes_per_trigger: ByteSize = Field(ByteSize(128 * 1024 * 1024), gt=0)
    """Most bytes of compressed files per batch; at least one file is read."""


class KinesisSettings(SettingsSection):
    """Kinesis, read by the connector of Databricks' runtime."""

    streams: str = Field(min_length=1)
    """Stream names, separated by commas. Each is a topic."""
    region: str = Field(min_length=1)
    """AWS region of the streams."""
    options: dict[str, str] = Field(default_factory=dict, repr=False)
    """Any further option of the connector: a login, or `serviceCredential`."""


class TopicChangePolicy(StrEnum):
    """What bronze does if a topic was deleted, created again, or lost messages before bronze read them."""

    FAIL = "fail"
    FORGET = "forget"
    RESTART = "restart"


class SecurityProtocol(StrEnum):
    """The security protocol of a broker, with Kafka's own names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


class SaslMechanism(StrEnum):
    """How a client logs in under a SASL protocol, with Kafka's own names."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


_LOGIN = ("username", "password")
_TOKEN = ("token_url", "client_id", "client_secret")
_TLS = ("ca", "certificate", "key", "key_password")
# Client options that the section `security` sets itself.
_SECURITY_OPTIONS = re.compile(
    r"security\.protocol|sasl\.(mechanism|jaas\.config|login\.callback.*|oauthbearer\..*)"
    r"|ssl\.((truststore|keystore)\..*|key\.password)"
)

_ISOLATION, _COMMITTED = "isolation.level", "read_committed"


class KafkaSecurity(SettingsSection):
    """How clients reach a secured broker. The same settings apply to Java and Python clients."""

    protocol: SecurityProtocol
    """The broker's security protocol."""
    mechanism: SaslMechanism | None = None
    """How the client logs in, for a SASL protocol."""
    username: str | None = Field(None, min_length=1)
    """With `password`, for PLAIN and SCRAM."""
    password: SecretStr | None = Field(None, min_length=1)
    """With `username`, for PLAIN and SCRAM."""
    token_url: str | None = Field(None, pattern=r"^https?://\S+$")
    """Where OAUTHBEARER gets its tokens, by the client credentials grant."""
    client_id: str | None = Field(None, min_length=1)
    """Identifies the client to `token_url`."""
    client_secret: SecretStr | None = Field(None, min_length=1)
    """Authenticates the client to `token_url`."""
    scope: str | None = Field(None, min_length=1)
    """Scope of the requested token, if `token_url` needs one."""
    ca: str | None = Field(None, min_length=1)
    """CA certificates for checking brokers: a PEM file, or its text. Default: those that the client trusts."""
    certificate: str | None = Field(None, min_length=1)
    """The client's own certificate with its chain, for a broker that asks for one (mTLS): a PEM file, or its text."""
    key: SecretStr | None = Field(None, min_length=1)
    """The key of `certificate`, in PKCS#8: a PEM file, or its text."""
    key_password: SecretStr | None = Field(None, min_length=1)
    """Password of `key`, if it is encrypted."""

    @property
    def uses_tls(self) -> bool:
        """True if the connection is encrypted (TLS)."""
        return self.protocol in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}

    @model_validator(mode="after")
    def _require_needed_settings(self) -> Self:
        sasl = self.protocol in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}
        if sasl and self.mechanism is None:
            raise ValueError(
                f"protocol {self.protocol} needs a login: set mechanism to one of {', '.join(SaslMechanism)}"
            )
        if not sasl:
            self._refuse_settings_that_do_not_apply(
                ("mechanism", *_LOGIN, *_TOKEN, "scope"),
                f"{self.protocol} has no login; use SASL_SSL, or leave these out",
            )
        elif self.mechanism is SaslMechanism.OAUTHBEARER:
            self._require_settings_for_mechanism(_TOKEN, f"{self.mechanism}")
            self._refuse_settings_that_do_not_apply(
                _LOGIN, f"{self.mechanism} logs in with client_id and client_secret; leave these out"
            )
        else:
            self._require_settings_for_mechanism(_LOGIN, f"{self.mechanism}")
            self._refuse_settings_that_do_not_apply(
                (*_TOKEN, "scope"), f"{self.mechanism} logs in with username and password; leave these out"
            )
        if not self.uses_tls:
            self._refuse_settings_that_do_not_apply(
                _TLS, f"{self.protocol} uses no certificates; use SSL or SASL_SSL, or leave these out"
            )
        if (self.certificate is None) != (self.key is None):
            raise ValueError("only one of certificate and key is set, but Kafka needs both; set both or neither")
        if self.key_password is not None and self.key is None:
            raise ValueError(
                "key_password is set, but there is no key that it opens; set `key`, or leave key_password out"
            )
        return self

    def _require_settings_for_mechanism(self, names: Iterable[str], mechanism: str) -> None:
        if missing := [name for name in names if getattr(self, name) is None]:
            raise ValueError(f"{mechanism} needs {' and '.join(missing)}")

    def _refuse_settings_that_do_not_apply(self, names: Iterable[str], reason: str) -> None:
        if given := [name for name in names if getattr(self, name) is not None]:
            raise ValueError(f"{' and '.join(given)}: {reason}")


class KafkaSettings(SettingsSection):
    """Where messages come from, and how Kafka is reached."""

    bootstrap_servers: str = Field("127.0.0.1:9092", min_length=1)
    """Brokers to connect to first, as `host:port`, separated by commas."""
    topic_pattern: Regex = r"capture\..+"
    """Regular expression that must match the whole name of a topic for bronze to read it."""
    options: dict[str, str] = Field(default_factory=dict, repr=False)
    """Any further client option, without the prefix `kafka.`, as in `security.protocol: SASL_SSL`.

    A secret has all options as one JSON object.
    """
    security: KafkaSecurity | None = None
    """How a secured broker is reached. `options` can say the same in Kafka's own words, for Java clients only."""
    service_credential: str | None = Field(None, min_length=1)
    """A Unity Catalog service credential, used for reading and sending instead of `security` and `options`."""
    allow_offset_gaps: bool = False
    """True for compacted topics, whose offsets have gaps where Kafka removed messages. Transactions do not need it."""
    on_topic_change: TopicChangePolicy = TopicChangePolicy.FAIL
    """What happens if a topic is deleted or created again, or loses messages to retention before bronze reads them."""
    inactive_after: Duration = timedelta(days=7)
    """Bronze unsubscribes from a topic without a message for this long, until a message arrives."""

    @field_validator("options", mode="before")
    @classmethod
    def _convert_options_to_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise ValueError(
                    'options is a text that is not one JSON object; write it as \'{"client.id": "lake"}\''
                ) from None
        if not isinstance(value, dict):
            return value
        spelled = {True: "true", False: "false"}
        return {str(k).removeprefix("kafka."): spelled[v] if isinstance(v, bool) else str(v) for k, v in value.items()}

    @model_validator(mode="after")
    def _refuse_uncommitted_reads(self) -> Self:
        level = self.options.get(_ISOLATION, _COMMITTED)
        if level != _COMMITTED:
            raise ValueError(
                f"options has {_ISOLATION}: {level}, which would also read messages of aborted "
                f"transactions; leave it out, which means {_COMMITTED}"
            )
        return self

    @model_validator(mode="after")
    def _require_security_set_once(self) -> Self:
        twice = [key for key in self.options if self.security is not None and _SECURITY_OPTIONS.fullmatch(key)]
        if twice:
            raise ValueError(
                f"options has {', '.join(sorted(twice))}, which kafka.security sets too; set each in one place only"
            )
        return self


class BronzeSettings(SettingsSection):
    """Settings of bronze, the layer that copies messages from a source to `bronze.messages`."""

    source: MessageSourceKind = MessageSourceKind.KAFKA
    """Where messages come from."""
    archive: FileArchiveSettings | None = None
    kinesis: KinesisSettings | None = None
    max_offsets_per_trigger: int = Field(1_000_000, gt=0)
    """Most messages per batch."""
    trigger: Duration = timedelta(seconds=1)
    """Least time between the starts of two batches."""
    topic_refresh: Duration = timedelta(seconds=3)
    """How often bronze looks for new topics and partitions."""
    silent_after: Duration | None = timedelta(hours=1)
    """After this long without a message in a topic-partition, bronze writes silence rows for it. None: never.

    Bronze waits at least `capture.session_timeout`. Silence rows make stream time advance, so that sessions expire.
    """

    @model_validator(mode="after")
    def _require_settings_of_source(self) -> Self:
        if self.source is not MessageSourceKind.KAFKA and getattr(self, self.source) is None:
            raise ValueError(
                f"source is {self.source}, but bronze.{self.source} says nothing about it; set bronze.{self.source}"
            )
        return self
