"""Reads GTFS Realtime: Protobuf messages with the trip updates, vehicle positions and alerts of a transit agency.

Source: gtfs-realtime.proto of GTFS Realtime 2.0. Extensions of agencies are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sessionlake.feeds.decoder import Delete, Event, Message, Put
from sessionlake.feeds.trees import build_message_class, parse_tree

_SCHEMA = """
FeedMessage: header 1 FeedHeader, entity 2 repeated FeedEntity
FeedHeader: gtfs_realtime_version 1 string, incrementality 2 int32, timestamp 3 uint64, feed_version 4 string
FeedEntity: id 1 string, is_deleted 2 bool, trip_update 3 TripUpdate, vehicle 4 VehiclePosition, alert 5 Alert, shape 6 Shape
TripUpdate: trip 1 Trip, vehicle 3 Vehicle, stop_time_update 2 repeated StopTimeUpdate, timestamp 4 uint64, delay 5 int32
StopTimeUpdate: stop_sequence 1 uint32, stop_id 4 string, arrival 2 StopTimeEvent, departure 3 StopTimeEvent, schedule_relationship 5 int32
StopTimeEvent: delay 1 int32, time 2 int64, uncertainty 3 int32, scheduled_time 4 int64
VehiclePosition: trip 1 Trip, vehicle 8 Vehicle, position 2 Position, current_stop_sequence 3 uint32, stop_id 7 string, current_status 4 int32, timestamp 5 uint64, congestion_level 6 int32, occupancy_status 9 int32, occupancy_percentage 10 uint32
Alert: active_period 1 repeated TimeRange, informed_entity 5 repeated Selector, cause 6 int32, effect 7 int32, url 8 Translated, header_text 10 Translated, description_text 11 Translated, severity_level 14 int32
TimeRange: start 1 uint64, end 2 uint64
Position: latitude 1 float, longitude 2 float, bearing 3 float, odometer 4 double, speed 5 float
Trip: trip_id 1 string, route_id 5 string, direction_id 6 uint32, start_time 2 string, start_date 3 string, schedule_relationship 4 int32
Vehicle: id 1 string, label 2 string, license_plate 3 string, wheelchair_accessible 4 int32
Selector: agency_id 1 string, route_id 2 string, route_type 3 int32, trip 4 Trip, stop_id 5 string, direction_id 6 uint32
Translated: translation 1 repeated Translation
Translation: text 1 string, language 2 string
Shape: shape_id 1 string, encoded_polyline 2 string
"""  # noqa: E501 - a type has one line
_STATUS = ("INCOMING_AT", "STOPPED_AT", "IN_TRANSIT_TO")
_OCCUPANCY = (
    "EMPTY", "MANY_SEATS_AVAILABLE", "FEW_SEATS_AVAILABLE", "STANDING_ROOM_ONLY", "CRUSHED_STANDING_ROOM_ONLY", "FULL",
    "NOT_ACCEPTING_PASSENGERS", "NO_DATA_AVAILABLE", "NOT_BOARDABLE",
)  # fmt: skip
_RELATIONSHIP = ("SCHEDULED", "ADDED", "UNSCHEDULED", "CANCELED", "4", "REPLACEMENT", "DUPLICATED", "DELETED", "NEW")
_KINDS = ("trip_update", "vehicle", "alert", "shape")
_FULL_DATASET = 0
_FeedMessage = build_message_class("FeedMessage", _SCHEMA)


class GtfsRealtime:
    """The decoder of the preset `gtfs_realtime`. A row is an entity of the feed."""

    def decode(self, message: Message) -> Iterable[Event]:
        """Yields one event; none for a tombstone.

        The event is a snapshot of all entities, or for a differential feed an update with some.
        """
        if message.value is None:
            return
        found = parse_tree(_FeedMessage, message.value)
        header = found.get("header", {})
        if "timestamp" not in header:
            raise ValueError("the header has no timestamp, which orders the messages")
        is_full = header.get("incrementality", _FULL_DATASET) == _FULL_DATASET
        kind, at = "snapshot" if is_full else "update", header["timestamp"]
        yield Event(kind=kind, ts=at * 1000, seq=at, rows=_rows(found["entity"]))


def _rows(entities: list[dict[str, Any]]) -> Iterator[Put | Delete]:
    for entity in entities:
        key = {"id": entity.get("id")}
        yield Delete(key) if entity.get("is_deleted") else Put(key, _values(entity))


def _values(entity: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of an entity's columns; None for all that it does not have."""
    kind = next((name for name in _KINDS if name in entity), None)
    body = entity[kind] if kind else {}
    trip, vehicle, position = (body.get(name, {}) for name in ("trip", "vehicle", "position"))
    return {
        "kind": kind,
        **{name: trip.get(name) for name in ("trip_id", "route_id", "direction_id", "start_date", "start_time")},
        "schedule_relationship": _symbol(_RELATIONSHIP, trip.get("schedule_relationship")),
        "vehicle_id": vehicle.get("id"),
        "vehicle_label": vehicle.get("label"),
        **{name: position.get(name) for name in ("latitude", "longitude", "bearing", "odometer", "speed")},
        **{name: body.get(name) for name in ("stop_id", "current_stop_sequence", "delay", "occupancy_percentage")},
        "current_status": _symbol(_STATUS, body.get("current_status")),
        "occupancy_status": _symbol(_OCCUPANCY, body.get("occupancy_status")),
        "measured": body.get("timestamp"),
        "entity": body or None,
    }


def _symbol(names: tuple[str, ...], number: int | None) -> str | None:
    """Returns the name of an enum value; its number as text if it has none."""
    if number is None:
        return None
    return names[number] if 0 <= number < len(names) else str(number)
