"""Recognizes messages that are rows of a table, each with its row's key as the Kafka key."""

from __future__ import annotations

from typing import Any

from sessionlake.feeds.inference.order import BY_PLACE, choose_time
from sessionlake.feeds.inference.sample import Sample
from sessionlake.feeds.inference.tables import columns_of, row_setting
from sessionlake.feeds.inference.words import SESSIONS, is_identifier, rank

_USUAL = 0.9


def propose_upserts(sample: Sample) -> tuple[dict[str, Any], dict[str, str], list[str]] | None:
    """Returns settings, what was seen, and notes for such messages; None if the messages have another form."""
    field = _field_of_key(sample)
    if field is None:
        return None
    fields, columns = columns_of([one.value for one in sample.messages])
    key = next((name for name, path in fields.items() if path == f".{field}"), None)
    if key is None:
        return None
    deletes = columns[key].sql == "string"
    tombstone: dict[str, Any] = {"when": {"body": "tombstone"}, "is": "ignore"}
    if deletes:
        tombstone |= {"is": "update", "rows": [{"row": {key: "kafka.key"}, "delete": True}]}
    time = choose_time(sample.messages).setting
    settings = {
        "session": BY_PLACE,
        "key": [key],
        "columns": {name: inferred.setting for name, inferred in columns.items()},
        "time": time,
        "starts_with": "anything",
        "messages": [tombstone, {"is": "update", "rows": [{"row": row_setting(fields, {})}]}],
    }
    seen = {f"columns.{name}": inferred.seen for name, inferred in columns.items() if inferred.seen}
    what = "deletes the row" if deletes else "is ignored"
    notes = [f"each message is a row, because its Kafka key is its {field}; a tombstone {what}"]
    return {name: value for name, value in settings.items() if value is not None}, seen, notes


def _field_of_key(sample: Sample) -> str | None:
    """Returns the field that has the same text as the Kafka key in nearly all messages; None if there is none."""
    if not sample.messages or not all(isinstance(one.value, dict) for one in sample.messages):
        return None
    paths = [path for path in sample.messages[0].scalars if is_identifier(path) and not rank(path, SESSIONS)]
    for path in paths:
        same = sum(_text(one.scalars.get(path)) == one.record.key for one in sample.messages)
        if same >= _USUAL * len(sample.messages):
            return path
    return None


def _text(value: Any) -> bytes | None:
    return str(value).encode() if isinstance(value, str | int) and not isinstance(value, bool) else b""
