"""Recognizes messages that are rows of a table, each with its row's key as the Kafka key."""

from __future__ import annotations

from typing import Any

from sessionlake.feeds.inference.change_capture import build_key_and_column_settings, list_possible_column_names
from sessionlake.feeds.inference.sample import SampledMessages
from sessionlake.feeds.inference.words import SESSIONS, is_name_of_identifier, rank_field_name

_USUAL = 0.9


def propose_upsert_feed(sample: SampledMessages) -> tuple[dict[str, Any], dict[str, str], list[str]] | None:
    """Proposes a feed for messages that are rows with their key as Kafka key; None if the messages have another form.

    Returns:
        The feed's settings, what the sample shows about each by its name, and notes for the user.
    """
    field = _find_field_equal_to_kafka_key(sample)
    rows = [one.value for one in sample.messages]
    if field is None or field not in (names := list_possible_column_names(rows)):
        return None
    settings, seen = build_key_and_column_settings(names, rows, [field])
    is_text = settings["columns"][field] == "string"
    notes = [f"each message is a row, because its Kafka key is its {field}; a tombstone deletes the row"]
    return {"uses": "upsert", **({} if is_text else {"key_format": "json"}), **settings}, seen, notes


def _find_field_equal_to_kafka_key(sample: SampledMessages) -> str | None:
    """Returns the field that has the same text as the Kafka key in nearly all messages; None if there is none."""
    if not sample.messages or not all(isinstance(one.value, dict) for one in sample.messages):
        return None
    paths = [
        path
        for path in sample.messages[0].scalars
        if is_name_of_identifier(path) and not rank_field_name(path, SESSIONS)
    ]
    for path in paths:
        same = sum(_encode_text_or_integer(one.scalars.get(path)) == one.record.key for one in sample.messages)
        if same >= _USUAL * len(sample.messages):
            return path
    return None


def _encode_text_or_integer(value: Any) -> bytes | None:
    return str(value).encode() if isinstance(value, str | int) and not isinstance(value, bool) else b""
