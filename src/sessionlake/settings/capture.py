"""Settings that decide silver's results: what messages contain, and how sessions are judged."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import (
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from sessionlake.feeds.feed import KafkaKeyFormat
from sessionlake.feeds.topics import FeedTopics
from sessionlake.protocol.columns import Column, parse_columns
from sessionlake.protocol.names import fold_case
from sessionlake.protocol.payload import PayloadFormat
from sessionlake.settings.feeds import FeedSettings
from sessionlake.settings.section import Duration, Integrity, OnViolation, Regex, Section

SILVER_NAMES = frozenset(
    {"session_changes", "session_progress", "session_cuts", "quarantine", "integrity_events", "session_rows"}
    | {"sessions", "session_snapshots", "session_snapshot_index", "processor_errors"}
)
"""Names in the schema `silver` that no view of a feed may have."""
DEFAULT_COLUMNS = {"price": "double", "qty": "bigint", "status": "string"}


class TopicRule(Section):
    """Overrides `capture` settings for topics whose whole name matches `pattern`. The first matching rule applies."""

    pattern: Regex
    """Regular expression that must match the topic's whole name."""
    integrity: Integrity | None = None
    """Overrides `capture.integrity`."""
    on_violation: OnViolation | None = None
    """Overrides `capture.on_violation`."""
    lateness: Duration | None = None
    """Overrides `capture.lateness`."""


class PayloadSettings(Section):
    """The schemas for Avro and Protobuf messages."""

    schema_file: Path | None = None
    """The schema of all messages: Avro (.avsc), or a Protobuf descriptor set (`protoc --include_imports -o`)."""
    schema_files: dict[int, Path] = Field(default_factory=dict)
    """Instead of `schema_file`: one file per schema id, for messages with a wire header."""
    message: str | None = Field(None, min_length=1)
    """Full name of the Protobuf message type. With a registry, each message names its own type."""
    registry_url: str | None = None
    """Instead of files: the address of a schema registry."""
    registry_auth: SecretStr | None = None
    """Login for the registry: `user:password`, or a bearer token."""
    wire_header: bool | None = None
    """True if messages start with a schema id, as with a registry. Default: true unless `schema_file` is set."""

    @field_validator("registry_url")
    @classmethod
    def _validate_registry_url(cls, value: str | None) -> str | None:
        parts = urlsplit(value or "http://none")
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(
                "this is not the address of a server; write it as https://HOST:PORT, optionally with a path"
            )
        if parts.username or parts.password:
            raise ValueError("an address has no user and password here; write them in registry_auth")
        return value and value.rstrip("/")

    @property
    def has_wire_header(self) -> bool:
        """True if messages start with a wire header, which names their schema by its id."""
        return self.schema_file is None if self.wire_header is None else self.wire_header


class CaptureSettings(Section):
    """What messages contain, and how strictly sessions are judged."""

    format: PayloadFormat = PayloadFormat.JSON
    """How the values of messages are encoded."""
    payload: PayloadSettings = PayloadSettings()
    columns: dict[str, str] = Field(default_factory=DEFAULT_COLUMNS.copy)
    """The columns of a row and their Spark SQL types. Leave it out beside `feeds`, which declare columns themselves."""
    feeds: tuple[FeedSettings, ...] = ()
    """How messages of other forms are read. Empty: all messages have the form of sessionlake."""
    integrity: Integrity = Integrity.STRICT
    """The integrity class by which sessions are judged."""
    on_violation: OnViolation = OnViolation.FAIL
    """What happens when a session violates its class: the job stops, the session is isolated, or the event is recorded.
    """
    by_topic: tuple[TopicRule, ...] = ()
    lateness: Duration = timedelta(minutes=10)
    """Under `window`: how far behind the session's highest event time a message is still applied."""
    gap_timeout: Duration = timedelta(minutes=10)
    """Under `once`: how long a message may be missing, in stream time, before that is a violation."""
    session_timeout: Duration = timedelta(hours=1)
    """A session expires after this long without a message, in stream time."""
    max_future_skew: Duration = timedelta(days=1)
    """How far an event time may be ahead of its message's Kafka timestamp.

    The same limit holds for Kafka timestamps that are ahead of the time at which bronze reads the message.
    """
    max_message_bytes: int = Field(10 * 1024 * 1024, gt=0)
    """Messages with larger values go to quarantine."""
    max_held_messages: int = Field(10_000, ge=1)
    """Most messages of a session that class `window` holds back. One more is a violation."""
    max_held_bytes: int = Field(64 * 1024 * 1024, ge=1)
    """Most bytes of a session that class `window`, or `hold` of a feed, holds back. More is a violation."""
    max_gaps: int = Field(10_000, ge=0)
    """Most gaps in a session's seqs, under `once` and `window`. One more is a violation."""

    @field_validator("columns")
    @classmethod
    def _validate_column_types(cls, value: dict[str, str]) -> dict[str, str]:
        parse_columns(value)
        return value

    @model_validator(mode="after")
    def _require_usable_payload(self) -> Self:
        wrong = _describe_format_conflict(self.format, self.feeds, self.payload) or _describe_wrong_payload_settings(
            self.payload_format, self.payload
        )
        if wrong:
            raise ValueError(f"payload: {wrong}")
        return self

    @model_validator(mode="after")
    def _require_compatible_feeds(self) -> Self:
        if self.feeds and "columns" in self.model_fields_set:
            raise ValueError(
                "capture.columns cannot be set beside capture.feeds, because each feed declares its own "
                "columns; remove capture.columns"
            )
        _refuse_repeated_view_names(self.feeds)
        for feed in self.feeds:
            classes = (
                {feed.integrity} if feed.integrity else {self.integrity, *(rule.integrity for rule in self.by_topic)}
            )
            feed.refuse_integrity_classes({one for one in classes if one})
        _collect_feed_columns(self.feeds)
        return self

    @property
    def feed_views(self) -> tuple[str, ...]:
        """Names of the views of feeds: `silver.<name>` and `silver.<name>_changes` of each."""
        return tuple(view for feed in self.feeds for view in feed.views)

    def find_column(self, name: str) -> Column:
        """Returns the declared column with this name, which must exist."""
        return next(column for column in self.declared_columns if column.name == name)

    def find_feed_topics(self, name: str) -> FeedTopics:
        """Returns which topics a feed reads: those that match its pattern, but no earlier feed's pattern."""
        place = [feed.name for feed in self.feeds].index(name)
        return FeedTopics(self.feeds[place].topics, tuple(feed.topics for feed in self.feeds[:place]))

    @property
    def payload_format(self) -> PayloadFormat:
        """The format whose schemas `payload` names: Avro or Protobuf if messages or feeds use it, otherwise JSON."""
        kinds = {self.format, *_list_feed_formats(self.feeds)} - {PayloadFormat.JSON}
        return min(kinds, default=PayloadFormat.JSON)

    @property
    def declared_columns(self) -> tuple[Column, ...]:
        """The declared columns with parsed types, as the configuration orders them: of all feeds, or `columns`."""
        return _collect_feed_columns(self.feeds) if self.feeds else parse_columns(self.columns)


def _list_feed_formats(feeds: Sequence[FeedSettings]) -> set[PayloadFormat]:
    keys = {PayloadFormat.AVRO for feed in feeds if feed.key_format is KafkaKeyFormat.AVRO}
    return keys | {feed.format for feed in feeds}


def _describe_format_conflict(
    message_format: PayloadFormat, feeds: Sequence[FeedSettings], payload: PayloadSettings
) -> str | None:
    """Returns why one `payload` section cannot serve all message formats of the configuration; None if it can."""
    kinds = sorted({message_format, *_list_feed_formats(feeds)} - {PayloadFormat.JSON})
    if len(kinds) > 1:
        return f"{' and '.join(kinds)} in one configuration need two sets of schemas; use one of them in all feeds"
    if any(feed.key_format is KafkaKeyFormat.AVRO for feed in feeds) and not payload.has_wire_header:
        return "key_format avro needs the schema id in the wire header: use registry_url or schema_files"
    return None


def _refuse_repeated_view_names(feeds: Sequence[FeedSettings]) -> None:
    """Raises ValueError if a feed's view has the name of another feed's view or of a table of silver."""
    views: dict[str, str] = {}
    for feed in feeds:
        for view in (name.removeprefix("silver.") for name in feed.views):
            if view in views:
                raise ValueError(
                    f"feeds: {views[view]!r} and {feed.name!r} would both have the view {view} in silver; "
                    "rename one of the feeds"
                )
            if view in SILVER_NAMES:
                raise ValueError(
                    f"feeds: {feed.name!r}: its view in silver would be {view}, which is a table of "
                    "sessionlake itself; rename the feed"
                )
            views[view] = feed.name


def _collect_feed_columns(feeds: Sequence[FeedSettings]) -> tuple[Column, ...]:
    """Returns the columns of all feeds without duplicates, in the order in which they first occur.

    Raises:
        ValueError: Two feeds declare a column with different types or spellings; the text names both.
    """
    found: dict[str, tuple[Column, str]] = {}
    for settings in feeds:
        for column in settings.build().list_table_columns():
            known, owner = found.setdefault(fold_case(column.name), (column, settings.name))
            if known != column:
                raise ValueError(
                    f"feeds: column {column.name!r} is {column.sql} in feed {settings.name!r}, but "
                    f"{known.name!r} is {known.sql} in feed {owner!r}, and all feeds share one table; use the "
                    "same name and type in both, or another name"
                )
    return tuple(column for column, _ in found.values())


def _describe_wrong_payload_settings(message_format: PayloadFormat, payload: PayloadSettings) -> str | None:
    """Returns what is wrong with the section `payload` for messages of this format; None if nothing is."""
    if message_format is PayloadFormat.JSON:
        return "is for format avro or protobuf; leave it out" if payload != PayloadSettings() else None
    sources = [name for name in ("schema_file", "schema_files", "registry_url") if getattr(payload, name)]
    found = " and ".join(sources) or "none"
    by_id = not payload.schema_file
    wrong = {
        f"format {message_format} needs one of schema_file, schema_files and registry_url, found {found}": len(sources)
        != 1,
        f"{found} needs the schema id in the wire header: leave out wire_header": by_id and not payload.has_wire_header,
        "message names a Protobuf type; leave it out": message_format is PayloadFormat.AVRO and bool(payload.message),
        "message must name the Protobuf type, as in my.package.Capture": message_format is PayloadFormat.PROTOBUF
        and not (payload.message or payload.registry_url),
        "registry_auth needs registry_url": bool(payload.registry_auth and not payload.registry_url),
    }
    return next((text for text, applies in wrong.items() if applies), None)
