"""What is captured and how it is judged: the settings that decide results. They are read with all others (`config`).

Durations and patterns are spelled alike in every section, so their types are here, too.
"""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from sessionlake.protocol.backtracking import find_slow_matching
from sessionlake.protocol.columns import Column, parse_columns
from sessionlake.protocol.payload import PayloadFormat

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]+)")
_UNIT_MS = {"millisecond": 1, "ms": 1, "second": 1000, "s": 1000, "minute": 60_000, "m": 60_000, "min": 60_000,
            "hour": 3_600_000, "h": 3_600_000, "day": 86_400_000, "d": 86_400_000, "week": 604_800_000}  # fmt: skip


def _duration(value: object) -> timedelta:
    """`10 minutes`, `1 hour`, `500 ms`: one number and one unit."""
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    unit = match["unit"] if match else ""
    factor = _UNIT_MS.get(unit) or _UNIT_MS.get(unit.removesuffix("s"))
    if match is None or factor is None:
        raise ValueError(
            "a duration is a number and a unit (ms, seconds, minutes, hours, days, weeks), as in '10 minutes'"
        )
    return timedelta(milliseconds=float(match["number"]) * factor)


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    if why := find_slow_matching(value):
        raise ValueError(
            f"a topic's name (of up to 249 characters) could make this expression take hours: {why}; write it simpler"
        )
    return value


Duration = Annotated[timedelta, BeforeValidator(_duration)]
Regex = Annotated[str, AfterValidator(_regex)]


def milliseconds(duration: timedelta) -> int:
    """Whole milliseconds of a duration: the unit of every time in the protocol."""
    return duration // timedelta(milliseconds=1)


class Integrity(StrEnum):
    """How a session's stream is judged (PROTOCOL, "Stream integrity")."""

    NONE = "none"
    ONCE = "once"
    ORDER = "order"
    WINDOW = "window"
    STRICT = "strict"


class OnViolation(StrEnum):
    """What a violation does."""

    FAIL = "fail"
    ISOLATE = "isolate"
    RECORD = "record"


class Section(BaseModel):
    """A part of the configuration: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TopicRule(Section):
    """Overrides for the topics whose whole name matches `pattern`; the first matching rule wins."""

    pattern: Regex
    """Regular expression of the whole names of the topics."""
    integrity: Integrity | None = None
    """In place of `capture.integrity`."""
    on_violation: OnViolation | None = None
    """In place of `capture.on_violation`."""
    lateness: Duration | None = None
    """In place of `capture.lateness`."""


class PayloadSettings(Section):
    """With what Avro and Protobuf messages are read; `protocol/payload.py` says what they carry."""

    schema_file: Path | None = None
    """The one schema: an Avro schema (.avsc), or a Protobuf descriptor set (`protoc --include_imports -o`)."""
    schema_files: dict[int, Path] = {}
    """Or a file for each schema id, for messages with a wire header."""
    message: str | None = Field(None, min_length=1)
    """Full name of the Protobuf message type; with a registry, each message says it itself."""
    registry_url: str | None = None
    """Or the schema registry that the ids in the messages' headers refer to."""
    registry_auth: SecretStr | None = None
    """`user:password`, or a bearer token."""
    wire_header: bool | None = None
    """Whether messages begin with a schema id, as they do with a registry; by default, unless `schema_file` is set."""

    @field_validator("registry_url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        parts = urlsplit(value or "http://none")
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("an address as https://host:port, maybe with a path, is needed")
        if parts.username or parts.password:
            raise ValueError("user and password belong in registry_auth")
        return value and value.rstrip("/")

    @property
    def header(self) -> bool:
        """Whether messages begin with a wire header."""
        return self.schema_file is None if self.wire_header is None else self.wire_header


class CaptureSettings(Section):
    """What the messages say and how strictly a session's stream is judged."""

    format: PayloadFormat = PayloadFormat.JSON
    """How the values of messages are encoded."""
    payload: PayloadSettings = PayloadSettings()
    columns: dict[str, str] = {"price": "double", "qty": "bigint", "status": "string"}
    """The columns of a row, with Spark's names of their types."""
    integrity: Integrity = Integrity.STRICT
    """The class by which the stream of a session is judged."""
    on_violation: OnViolation = OnViolation.FAIL
    """When a session breaks its class, the job stops, the session is isolated, or the event is recorded."""
    by_topic: tuple[TopicRule, ...] = ()
    lateness: Duration = timedelta(minutes=10)
    """Under `window`: how far behind the highest event time a message may still be applied."""
    gap_timeout: Duration = timedelta(minutes=10)
    """Under `once`: how long, in stream time, a missing message may take before it is a violation."""
    session_timeout: Duration = timedelta(hours=1)
    """A session without a message for longer, in stream time, has expired."""
    max_future_skew: Duration = timedelta(days=1)
    """How far an event time may be ahead of the message's Kafka timestamp, and that ahead of the time of reading."""
    max_message_bytes: int = Field(10 * 1024 * 1024, gt=0)
    """Longer values go to quarantine."""
    max_held_messages: int = Field(10_000, ge=1)
    """Most messages that class `window` holds back of a session, and most bytes: one more is a violation."""
    max_held_bytes: int = Field(64 * 1024 * 1024, ge=1)
    """Most bytes that class `window` holds back of a session: more is a violation."""
    max_gaps: int = Field(10_000, ge=0)
    """Most gaps between the seqs of a session, under `once` and `window`: one more is a violation."""

    @field_validator("columns")
    @classmethod
    def _declared(cls, value: dict[str, str]) -> dict[str, str]:
        parse_columns(value)
        return value

    @model_validator(mode="after")
    def _schemas_are_named(self) -> Self:
        wrong = _wrong_payload(self.format, self.payload)
        if wrong:
            raise ValueError(f"payload: {wrong}")
        return self

    @property
    def declared(self) -> tuple[Column, ...]:
        """The declared columns, parsed, in their configured order."""
        return parse_columns(self.columns)


def _wrong_payload(kind: PayloadFormat, payload: PayloadSettings) -> str | None:
    """What about the payload's settings does not go together."""
    if kind is PayloadFormat.JSON:
        return "is for format avro or protobuf; leave it out" if payload != PayloadSettings() else None
    sources = [name for name in ("schema_file", "schema_files", "registry_url") if getattr(payload, name)]
    found = " and ".join(sources) or "none"
    by_id = not payload.schema_file
    wrong = {
        f"format {kind} needs one of schema_file, schema_files and registry_url, found {found}": len(sources) != 1,
        f"{found} finds schemas by the id in the wire header: leave out wire_header": by_id and not payload.header,
        "message names a Protobuf type; leave it out": kind is PayloadFormat.AVRO and bool(payload.message),
        "message must name the Protobuf type, as in my.package.Capture": kind is PayloadFormat.PROTOBUF
        and not (payload.message or payload.registry_url),
        "registry_auth is of no use without registry_url": bool(payload.registry_auth and not payload.registry_url),
    }
    return next((text for text, applies in wrong.items() if applies), None)
