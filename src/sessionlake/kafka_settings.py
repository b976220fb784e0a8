"""The settings that say where the messages come from, and what becomes of topics."""

from __future__ import annotations

import json
from datetime import timedelta
from enum import StrEnum
from typing import Any

from pydantic import Field, field_validator

from sessionlake.capture import Duration, Regex, Section


class OnTopicChange(StrEnum):
    """What bronze does about a topic that was deleted, created anew, or cut before it was read."""

    FAIL = "fail"
    FORGET = "forget"
    RESTART = "restart"


class KafkaSettings(Section):
    """Where the messages come from."""

    bootstrap_servers: str = Field("127.0.0.1:9092", min_length=1)
    topic_pattern: Regex = r"capture\..+"
    options: dict[str, str] = Field(default_factory=dict, repr=False)
    """Any further client option, without its `kafka.` prefix: `security.protocol: SASL_SSL`. A secret holds them as one
    JSON object."""
    service_credential: str | None = Field(None, min_length=1)
    """A Unity Catalog service credential: messages are read and sent by it, and not by the login in `options`."""
    allow_offset_gaps: bool = False
    """True for compacted or transactional topics, whose offsets legitimately have holes."""
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
