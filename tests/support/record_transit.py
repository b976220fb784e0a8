"""Records a GTFS Realtime message with every field, for `test_transit_recording.py`.

Run it with Python in an environment that has `gtfs-realtime-bindings==3.0.0`, the classes that are generated from the
published gtfs-realtime.proto; the project's has none. It writes `tests/unit/recordings/transit.json`: the message, and
the same as JSON as Protobuf's own library has it.
"""

from __future__ import annotations

import base64
import json
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.transit.gtfs_realtime_pb2 import FeedMessage

FILE = Path(__file__).parents[1] / "unit/recordings/transit.json"
PARTS = ("trip_update", "vehicle", "alert", "shape", "stop", "trip_modifications")


def fill(message: Any, numbers: count[int]) -> None:
    """Sets every field of a message to a value of its own."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None:
            found = getattr(message, field.name)
            fill(found.add() if field.is_repeated else found, numbers)
            continue
        number = next(numbers)
        if field.enum_type is not None:
            value: Any = field.enum_type.values[number % len(field.enum_type.values)].number
        elif field.cpp_type == field.CPPTYPE_STRING:
            value = f"t{number}"
        else:
            value = number / 8 if field.cpp_type in {field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE} else number
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)


def main() -> None:
    message, numbers = FeedMessage(), count(1)
    message.header.gtfs_realtime_version, message.header.timestamp = "2.0", 1_700_000_000
    for part in PARTS:
        entity = message.entity.add(id=part)
        fill(getattr(entity, part), numbers)
    expected = MessageToDict(message, preserving_proto_field_name=True, use_integers_for_enums=True)
    found = {
        "made_with": f"gtfs-realtime-bindings {version('gtfs-realtime-bindings')}, protobuf {version('protobuf')}",
        "message": base64.b64encode(message.SerializeToString()).decode(),
        "expected": {entity["id"]: entity[entity["id"]] for entity in expected["entity"]},
    }
    FILE.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
