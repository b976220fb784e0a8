"""The messages of a shape in forms of other systems, and the feeds that read them.

Each form carries the same sessions, rows and order as the simulator's messages. In the form of Debezium every row of a
snapshot is a message of its own (`op: r`), so a million messages have fewer updates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from sessionlake.settings.feeds import FeedSettings
from sessionlake_lab.simulate.scenario import KafkaRecord

START = datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS = {"id": "string", "price": "double", "qty": "bigint", "status": "string"}
FEEDS: dict[str, dict[str, Any]] = {
    "coinbase": {
        "session": "product_id",
        "order": {"seq": "sequence"},
        "time": {"path": "time", "from": "iso"},
        "columns": {
            **COLUMNS,
            "price": {"type": "double", "from": "text"},
            "qty": {"type": "bigint", "from": "text"},
        },
        "messages": [
            {"when": {"type": kind}, "is": effect, "rows": [{"each": f"{rows}[*]", "row": row}]}
            for row in [{name: f".[{place}]" for place, name in enumerate(COLUMNS)}]
            for kind, effect, rows in (("snapshot", "snapshot", "levels"), ("l2update", "update", "changes"))
        ],
    },
    "debezium": {
        "uses": "debezium",
        "session": "payload.source.name",
        "columns": COLUMNS,
    },
}
"""The keys of each form's feed, without name, topics and key."""


def find_feed_of_topic(form: str) -> FeedSettings:
    """The feed that reads a form."""
    return FeedSettings.model_validate({"name": form, "topics": ".*", "key": ["id"], **FEEDS[form]})


def in_form(form: str, messages: Iterable[KafkaRecord], count: int) -> Iterator[KafkaRecord]:
    """The first `count` messages of a form that carry what the simulator's messages do."""
    translate = TRANSLATE[form]
    translated = (
        message._replace(value=json.dumps(body, separators=(",", ":")).encode())
        for message in messages
        for body in translate(message, json.loads(message.value))
    )
    return islice(translated, count)


def as_coinbase(message: KafkaRecord, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One message with arrays of texts."""
    assert message.key is not None
    is_snapshot = body["type"] == "snapshot"
    at = START + timedelta(milliseconds=body["ts"])
    yield {
        "type": "snapshot" if is_snapshot else "l2update",
        "product_id": message.key.decode(),
        "sequence": body["seq"],
        "time": at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "levels" if is_snapshot else "changes": [[str(row[name]) for name in COLUMNS] for row in body["rows"]],
    }


def as_debezium(message: KafkaRecord, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A message for each row, without the schema."""
    assert message.key is not None
    source = {"version": "3.0.0", "connector": "postgresql", "db": "plant", "table": message.topic}
    source["name"] = message.key.decode()  # one connector a device
    for row in body["rows"]:
        yield {
            "payload": {
                "before": None,
                "after": row,
                "source": {**source, "ts_ms": body["ts"], "lsn": body["seq"]},
                "op": "r" if body["type"] == "snapshot" else "u",
                "ts_ms": body["ts"],
            }
        }


TRANSLATE: dict[str, Callable[[KafkaRecord, dict[str, Any]], Iterator[dict[str, Any]]]] = {
    "coinbase": as_coinbase,
    "debezium": as_debezium,
}
