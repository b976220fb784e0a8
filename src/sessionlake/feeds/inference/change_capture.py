"""Recognizes messages of change data capture in the form of Debezium: `op`, `before` and `after`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sessionlake.feeds.inference.sample import SampledMessages
from sessionlake.feeds.inference.types import infer_column_type
from sessionlake.feeds.inference.words import KEYS, is_name_of_identifier, rank_field_name
from sessionlake.protocol.columns import BUILT_IN_COLUMNS
from sessionlake.protocol.names import fold_case

_OPERATIONS = frozenset("rcudtm")
_USUAL = 0.9
ProposedFeedSettings = tuple[dict[str, Any], dict[str, str], list[str]]


def propose_change_capture_feed(sample: SampledMessages) -> ProposedFeedSettings | None:
    """Proposes a feed for messages of change data capture; None if the messages have another form.

    Returns:
        The feed's settings, what the sample shows about each by its name, and notes for the user.
    """
    prefix = next((prefix for prefix in ("", "payload.") if _are_change_messages(sample, prefix)), None)
    if prefix is None:
        return None
    bodies = [_find_change_envelope(one.value, prefix) for one in sample.messages]
    rows = [body[name] for body in bodies for name in ("before", "after") if isinstance(body.get(name), dict)]
    names = list_possible_column_names(rows)
    key = _choose_key_columns(sample, names, rows)
    if not names or not key:
        return None
    settings, seen = build_key_and_column_settings(names, rows, key)
    notes = ["change data capture in the form of Debezium: one table for each partition of a topic"]
    return {"uses": "debezium", **settings}, seen, notes


def build_key_and_column_settings(
    column_names: Sequence[str], rows: Sequence[dict[str, Any]], key_names: list[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the settings `key_names` and `columns`, and what the values of each column show, by its name.

    Args:
        column_names: Fields of rows that become columns.
        rows: Rows of the sample.
        key_names: Names of the fields that identify a row.
    """
    columns = {
        name: infer_column_type(name, [row.get(name) for row in rows], is_key=name in key_names)
        for name in column_names
    }
    seen = {f"columns.{name}": column.seen for name, column in columns.items() if column.seen}
    return {"key": key_names, "columns": {name: column.column_setting for name, column in columns.items()}}, seen


def _are_change_messages(sample: SampledMessages, prefix: str) -> bool:
    bodies = [_find_change_envelope(one.value, prefix) for one in sample.messages]
    fitting = [body for body in bodies if body.get("op") in _OPERATIONS and ("after" in body or "before" in body)]
    return bool(fitting) and len(fitting) >= _USUAL * len(bodies)


def _find_change_envelope(value: Any, prefix: str) -> dict[str, Any]:
    """Returns the object with `op`, `before` and `after`, in `payload` if there is a prefix; {} if there is none."""
    found = value.get("payload") if prefix and isinstance(value, dict) else value
    return found if isinstance(found, dict) and isinstance(found.get("op"), str) else {}


def list_possible_column_names(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the names of fields that can be names of columns; of those that differ only in case, the first."""
    found: dict[str, str] = {}
    for name in (name for row in rows for name in row if _can_be_column_name(name)):
        found.setdefault(fold_case(name), name)
    return [*found.values()]


def _can_be_column_name(name: str) -> bool:
    return bool(name) and name.isidentifier() and fold_case(name) not in {fold_case(one) for one in BUILT_IN_COLUMNS}


def _choose_key_columns(
    sample: SampledMessages, column_names: Sequence[str], rows: Sequence[dict[str, Any]]
) -> list[str]:
    """Returns the fields of the Kafka key if it is an object, otherwise the field that usually identifies a row."""
    for one in sample.messages:
        try:
            key = json.loads(one.record.key or b"null")
        except (ValueError, RecursionError):
            break
        inner = key.get("payload", key) if isinstance(key, dict) else None
        if isinstance(inner, dict) and inner and all(name in column_names for name in inner):
            return [*inner]
    complete = [name for name in column_names if all(row.get(name) is not None for row in rows)]
    best = sorted(complete, key=lambda name: (-rank_field_name(name, KEYS), not is_name_of_identifier(name)))
    return best[:1]
