"""Recognizes messages of change data capture in the form of Debezium: `op`, `before` and `after`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sessionlake.feeds.inference.order import BY_PLACE
from sessionlake.feeds.inference.sample import Sample
from sessionlake.feeds.inference.types import infer_type
from sessionlake.feeds.inference.words import KEYS, is_identifier, rank
from sessionlake.protocol.columns import BUILT_IN_COLUMNS
from sessionlake.protocol.names import fold_case

_OPERATIONS = frozenset("rcudtm")
_USUAL = 0.9
_Found = tuple[dict[str, Any], dict[str, str], list[str]]


def propose_change_capture(sample: Sample) -> _Found | None:
    """Returns settings, what was seen, and notes for change messages; None if the messages have another form."""
    prefix = next((prefix for prefix in ("", "payload.") if _fits(sample, prefix)), None)
    if prefix is None:
        return None
    bodies = [_body(one.value, prefix) for one in sample.messages]
    rows = [body[name] for body in bodies for name in ("before", "after") if isinstance(body.get(name), dict)]
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if _is_usable(name)]
    key = _key(sample, names, rows)
    if not names or not key:
        return None
    columns = {name: infer_type(name, [row.get(name) for row in rows], is_key=name in key) for name in names}
    time = {"path": f"{prefix}ts_ms", "else": "kafka.timestamp"}
    settings = {
        "session": BY_PLACE,
        "key": key,
        "columns": {name: column.setting for name, column in columns.items()},
        "time": time if any("ts_ms" in body for body in bodies) else None,
        "starts_with": "anything",
        "messages": _rules(prefix),
    }
    seen = {f"columns.{name}": column.seen for name, column in columns.items() if column.seen}
    notes = ["change data capture in the form of Debezium: one table for each partition of a topic"]
    return {name: value for name, value in settings.items() if value is not None}, seen, notes


def _fits(sample: Sample, prefix: str) -> bool:
    bodies = [_body(one.value, prefix) for one in sample.messages]
    fitting = [body for body in bodies if body.get("op") in _OPERATIONS and ("after" in body or "before" in body)]
    return bool(fitting) and len(fitting) >= _USUAL * len(bodies)


def _body(value: Any, prefix: str) -> dict[str, Any]:
    found = value.get("payload") if prefix and isinstance(value, dict) else value
    return found if isinstance(found, dict) and isinstance(found.get("op"), str) else {}


def _is_usable(name: str) -> bool:
    return bool(name) and name.isidentifier() and fold_case(name) not in {fold_case(one) for one in BUILT_IN_COLUMNS}


def _key(sample: Sample, names: Sequence[str], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the fields of the Kafka key if it is an object, otherwise the field that usually identifies a row."""
    for one in sample.messages:
        try:
            key = json.loads(one.record.key or b"null")
        except (ValueError, RecursionError):
            break
        inner = key.get("payload", key) if isinstance(key, dict) else None
        if isinstance(inner, dict) and inner and all(name in names for name in inner):
            return [*inner]
    complete = [name for name in names if all(row.get(name) is not None for row in rows)]
    best = sorted(complete, key=lambda name: (-rank(name, KEYS), not is_identifier(name)))
    return best[:1]


def _rules(prefix: str) -> list[dict[str, Any]]:
    operation = f"{prefix}op"
    return [
        {"when": {"body": "tombstone"}, "is": "ignore"},
        {"when": {operation: ["c", "r", "u"]}, "is": "update", "rows": [{"at": f"{prefix}after", "row": "all"}]},
        {
            "when": {operation: "d"},
            "is": "update",
            "rows": [{"at": f"{prefix}before", "row": "key", "delete": True}],
        },
        {"when": {operation: "t"}, "is": "snapshot"},
        {"when": {operation: "m"}, "is": "ignore"},
    ]
