"""The preset `gtfs_realtime` reads every field of the published schema, as the classes generated from it write it.

`recordings/transit.json` was made by `support/record_transit.py`. It names the versions of the packages.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from sessionlake.feeds.events import DecodedMessage
from sessionlake.feeds.reader import read_record
from support.feed_cases import feed, record
from unit.test_feed_presets_binary import BUSES

RECORDING: dict[str, Any] = json.loads((Path(__file__).parent / "recordings/transit.json").read_text())


def with_numbers(value: Any) -> Any:
    """JSON of Protobuf's library has integers of 64 bits as texts."""
    if isinstance(value, dict):
        return {name: with_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [with_numbers(item) for item in value]
    return int(value) if isinstance(value, str) and value.isdigit() else value


def test_every_field_of_the_published_schema_is_in_the_entity():
    found = read_record(feed(BUSES), record(base64.b64decode(RECORDING["message"]), topic="buses"))
    assert isinstance(found, DecodedMessage), found
    rows = found.events[0].rows
    assert {row.key: json.loads(row.values["entity"]) for row in rows} == {
        (part, part): with_numbers(entity) for part, entity in RECORDING["expected"].items()
    }
