"""Reads GTFS Realtime: Protobuf messages with the trip updates, vehicle positions and alerts of a transit agency.

Source: gtfs-realtime.proto of GTFS Realtime 2.0. Extensions of agencies are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sessionlake.feeds.decoder import Delete, Event, Message, Put
from sessionlake.feeds.trees import build_protobuf_message_class, parse_protobuf_as_dict

_SCHEMA = """
FeedMessage: header 1 FeedHeader, entity 2 repeated FeedEntity
FeedHeader: gtfs_realtime_version 1 string, incrementality 2 int32, timestamp 3 uint64, feed_version 4 string
FeedEntity: id 1 string, is_deleted 2 bool, trip_update 3 TripUpdate, vehicle 4 VehiclePosition, alert 5 Alert, shape 6 Shape, stop 7 Stop, trip_modifications 8 TripModifications
TripUpdate: trip 1 Trip, vehicle 3 Vehicle, stop_time_update 2 repeated StopTimeUpdate, timestamp 4 uint64, delay 5 int32, trip_properties 6 TripProperties
StopTimeUpdate: stop_sequence 1 uint32, stop_id 4 string, arrival 2 StopTimeEvent, departure 3 StopTimeEvent, departure_occupancy_status 7 int32, schedule_relationship 5 int32, stop_time_properties 6 StopTimeProperties
StopTimeEvent: delay 1 int32, time 2 int64, uncertainty 3 int32, scheduled_time 4 int64
StopTimeProperties: assigned_stop_id 1 string, stop_headsign 2 string, pickup_type 3 int32, drop_off_type 4 int32
TripProperties: trip_id 1 string, start_date 2 string, start_time 3 string, shape_id 4 string, trip_headsign 5 string, trip_short_name 6 string
VehiclePosition: trip 1 Trip, vehicle 8 Vehicle, position 2 Position, current_stop_sequence 3 uint32, stop_id 7 string, current_status 4 int32, timestamp 5 uint64, congestion_level 6 int32, occupancy_status 9 int32, occupancy_percentage 10 uint32, multi_carriage_details 11 repeated Carriage
Carriage: id 1 string, label 2 string, occupancy_status 3 int32, occupancy_percentage 4 int32, carriage_sequence 5 uint32
Alert: active_period 1 repeated TimeRange, communication_period 2 repeated TimeRange, impact_period 3 repeated TimeRange, informed_entity 5 repeated Selector, cause 6 int32, effect 7 int32, url 8 Translated, header_text 10 Translated, description_text 11 Translated, tts_header_text 12 Translated, tts_description_text 13 Translated, severity_level 14 int32, image 15 TranslatedImage, image_alternative_text 16 Translated, cause_detail 17 Translated, effect_detail 18 Translated
TimeRange: start 1 uint64, end 2 uint64
Position: latitude 1 float, longitude 2 float, bearing 3 float, odometer 4 double, speed 5 float
Trip: trip_id 1 string, route_id 5 string, direction_id 6 uint32, start_time 2 string, start_date 3 string, schedule_relationship 4 int32, modified_trip 7 ModifiedTrip
ModifiedTrip: modifications_id 1 string, affected_trip_id 2 string, start_time 3 string, start_date 4 string
Vehicle: id 1 string, label 2 string, license_plate 3 string, wheelchair_accessible 4 int32
Selector: agency_id 1 string, route_id 2 string, route_type 3 int32, trip 4 Trip, stop_id 5 string, direction_id 6 uint32
Translated: translation 1 repeated Translation
Translation: text 1 string, language 2 string
TranslatedImage: localized_image 1 repeated Image
Image: url 1 string, media_type 2 string, language 3 string
Shape: shape_id 1 string, encoded_polyline 2 string
Stop: stop_id 1 string, stop_code 2 Translated, stop_name 3 Translated, tts_stop_name 4 Translated, stop_desc 5 Translated, stop_lat 6 float, stop_lon 7 float, zone_id 8 string, stop_url 9 Translated, parent_station 11 string, stop_timezone 12 string, wheelchair_boarding 13 int32, level_id 14 string, platform_code 15 Translated
TripModifications: selected_trips 1 repeated SelectedTrips, start_times 2 repeated string, service_dates 3 repeated string, modifications 4 repeated Modification
SelectedTrips: trip_ids 1 repeated string, shape_id 2 string
Modification: start_stop_selector 1 StopSelector, end_stop_selector 2 StopSelector, propagated_modification_delay 3 int32, replacement_stops 4 repeated ReplacementStop, service_alert_id 5 string, last_modified_time 6 uint64
StopSelector: stop_sequence 1 uint32, stop_id 2 string
ReplacementStop: travel_time_to_stop 1 int32, stop_id 2 string
"""  # noqa: E501 - a type has one line
_STATUS = ("INCOMING_AT", "STOPPED_AT", "IN_TRANSIT_TO")
_OCCUPANCY = (
    "EMPTY", "MANY_SEATS_AVAILABLE", "FEW_SEATS_AVAILABLE", "STANDING_ROOM_ONLY", "CRUSHED_STANDING_ROOM_ONLY", "FULL",
    "NOT_ACCEPTING_PASSENGERS", "NO_DATA_AVAILABLE", "NOT_BOARDABLE",
)  # fmt: skip
_RELATIONSHIP = ("SCHEDULED", "ADDED", "UNSCHEDULED", "CANCELED", "4", "REPLACEMENT", "DUPLICATED", "DELETED", "NEW")
_KINDS = ("trip_update", "vehicle", "alert", "shape", "stop", "trip_modifications", "unknown")
_OF_POSITION = ("latitude", "longitude", "bearing", "odometer", "speed")
_FULL_DATASET, _DIFFERENTIAL = 0, 1
_FeedMessage = build_protobuf_message_class("FeedMessage", _SCHEMA)


class GtfsRealtime:
    """The decoder of the preset `gtfs_realtime`. A row is a part of an entity of the feed, such as its vehicle."""

    def decode(self, message: Message) -> Iterable[Event]:
        """Yields one event; none for a tombstone.

        The event is a snapshot of all entities. For a differential feed it is an update with some, which has no place
        in the order, because two of them may have the same timestamp. Without a timestamp, which version 1.0 allows,
        a message has the time of Kafka, and no place in the order.
        """
        if message.value is None:
            return
        found = parse_protobuf_as_dict(_FeedMessage, message.value)
        header = found.get("header", {})
        seq, rows = header.get("timestamp"), _convert_entities_to_row_changes(found["entity"])
        ts = message.timestamp if seq is None else seq * 1000
        incrementality = header.get("incrementality", _FULL_DATASET)
        if incrementality == _FULL_DATASET:
            yield Event(kind="snapshot", ts=ts, seq=seq, rows=rows)
        elif incrementality == _DIFFERENTIAL:
            yield Event(ts=ts, rows=rows)
        else:
            raise ValueError(f"the incrementality {incrementality} is unknown")


def _convert_entities_to_row_changes(entities: list[dict[str, Any]]) -> Iterator[Put | Delete]:
    for entity in entities:
        keys = {kind: {"kind": kind, "id": entity.get("id")} for kind in _KINDS}
        if entity.get("is_deleted"):
            yield from map(Delete, keys.values())
            continue
        present = [kind for kind in _KINDS if kind in entity] or ["unknown"]
        yield from (
            Put(keys[kind], {"kind": kind} | _build_column_values_of_entity(entity.get(kind, {}))) for kind in present
        )


def _build_column_values_of_entity(entity_part: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of the columns for a part of an entity; None for all that it does not have."""
    trip, vehicle, position = (entity_part.get(name, {}) for name in ("trip", "vehicle", "position"))
    return {
        **{name: trip.get(name) for name in ("trip_id", "route_id", "direction_id", "start_date", "start_time")},
        "schedule_relationship": _get_enum_name(_RELATIONSHIP, trip.get("schedule_relationship")),
        "vehicle_id": vehicle.get("id"),
        "vehicle_label": vehicle.get("label"),
        **{name: _get_finite_float_or_none(position.get(name)) for name in _OF_POSITION},
        **{
            name: entity_part.get(name)
            for name in ("stop_id", "current_stop_sequence", "delay", "occupancy_percentage")
        },
        "current_status": _get_enum_name(_STATUS, entity_part.get("current_status")),
        "occupancy_status": _get_enum_name(_OCCUPANCY, entity_part.get("occupancy_status")),
        "measured": entity_part.get("timestamp"),
        "entity": entity_part or None,
    }


def _get_finite_float_or_none(value: Any) -> float | None:
    """Returns a number; None for NaN and infinities, which are texts here."""
    return value if isinstance(value, float) else None


def _get_enum_name(names: tuple[str, ...], number: int | None) -> str | None:
    """Returns the name of an enum value; its number as text if it has none."""
    if number is None:
        return None
    return names[number] if 0 <= number < len(names) else str(number)
