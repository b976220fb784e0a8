"""Reads Sparkplug B: Protobuf payloads of MQTT topics such as `spBv1.0/plant/DDATA/node/device`.

Source: Eclipse Sparkplug specification 3.0. Its rules that matter here:

- A node's messages are counted from 0 to 255 and again from 0. A death of a node has no number. It names its birth by
  the metric `bdSeq`.
- A birth names all metrics with their data types. Data may name them by alias alone, and should have no data types.
- Integers are sent without a sign, and arrays as bytes. So some values mean nothing without their data type.
- A payload may be compressed, in the form of Eclipse Tahu. The payload around it has the number.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from sessionlake.feeds.decoder import Event, Message, Put, decode_utf8_or_none
from sessionlake.feeds.numbers import replace_non_finite_by_text
from sessionlake.feeds.reader import MAX_BYTES
from sessionlake.feeds.trees import build_protobuf_message_class, parse_protobuf_as_dict

_SCHEMA = """
Payload: timestamp 1 uint64, metrics 2 repeated Metric, seq 3 uint64, uuid 4 string, body 5 bytes
Metric: name 1 string, alias 2 uint64, timestamp 3 uint64, datatype 4 uint32, is_historical 5 bool, is_transient 6 bool, is_null 7 bool, metadata 8 MetaData, properties 9 PropertySet, int_value 10 uint32, long_value 11 uint64, float_value 12 float, double_value 13 double, boolean_value 14 bool, string_value 15 string, bytes_value 16 bytes, dataset_value 17 DataSet, template_value 18 Template
MetaData: is_multi_part 1 bool, content_type 2 string, size 3 uint64, seq 4 uint64, file_name 5 string, file_type 6 string, md5 7 string, description 8 string
PropertySet: keys 1 repeated string, values 2 repeated PropertyValue
PropertySetList: propertyset 1 repeated PropertySet
PropertyValue: type 1 uint32, is_null 2 bool, int_value 3 uint32, long_value 4 uint64, float_value 5 float, double_value 6 double, boolean_value 7 bool, string_value 8 string, propertyset_value 9 PropertySet, propertysets_value 10 PropertySetList
DataSet: num_of_columns 1 uint64, columns 2 repeated string, types 3 repeated uint32, rows 4 repeated Row
Row: elements 1 repeated DataSetValue
DataSetValue: int_value 1 uint32, long_value 2 uint64, float_value 3 float, double_value 4 double, boolean_value 5 bool, string_value 6 string
Template: version 1 string, metrics 2 repeated Metric, parameters 3 repeated Parameter, template_ref 4 string, is_definition 5 bool
Parameter: name 1 string, type 2 uint32, int_value 3 uint32, long_value 4 uint64, float_value 5 float, double_value 6 double, boolean_value 7 bool, string_value 8 string
"""  # noqa: E501 - a type has one line
_TYPES = (
    "Unknown", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float", "Double", "Boolean",
    "String", "DateTime", "Text", "UUID", "DataSet", "Bytes", "File", "Template", "PropertySet", "PropertySetList",
    "Int8Array", "Int16Array", "Int32Array", "Int64Array", "UInt8Array", "UInt16Array", "UInt32Array", "UInt64Array",
    "FloatArray", "DoubleArray", "BooleanArray", "StringArray", "DateTimeArray",
)  # fmt: skip
"""Names of the data types, by number."""
_SIGNED_BITS = {"Int8": 8, "Int16": 16, "Int32": 32, "Int64": 64}
_UNSIGNED = {"UInt8", "UInt16", "UInt32", "UInt64", "DateTime"}
_ARRAYS = {
    "Int8Array": "b", "Int16Array": "h", "Int32Array": "i", "Int64Array": "q", "UInt8Array": "B", "UInt16Array": "H",
    "UInt32Array": "I", "UInt64Array": "Q", "FloatArray": "f", "DoubleArray": "d", "DateTimeArray": "q",
}  # fmt: skip
"""The code of `struct` for the elements of each array of numbers."""
_SIGNED_IN = {"int_value": (8, 16, 32), "long_value": (64,)}
"""Widths of the signed integers that are sent in a field, up to its own width. A negative one has its highest bit."""
_VALUES = (
    "int_value", "long_value", "float_value", "double_value", "boolean_value", "string_value", "bytes_value",
    "dataset_value", "template_value", "propertyset_value", "propertysets_value",
)  # fmt: skip
_DEVICE_PLACE = 4
"""Place of the device in a topic, `spBv1.0/group/type/node/device`. Topics of nodes end before it."""
_MODULO = 256
_COMPRESSED = "SPBV1.0_COMPRESSED"
"""The `uuid` of a payload whose `body` is a compressed payload."""
_ZLIB_BITS = {"DEFLATE": zlib.MAX_WBITS, "GZIP": 16 + zlib.MAX_WBITS}
"""For each value of the metric `algorithm` of a compressed payload: the argument `wbits` of zlib."""
_MOST_ELEMENTS = 1_000_000
"""Most elements of an array. One byte can have eight of them, and each takes up to 20 bytes as text."""
_BIRTH = "bdSeq"
"""Name of the metric that numbers the births of a node."""
_QUALITY = "Quality"
"""Name of the property that says how good a value is: 0 is bad, 192 good, 500 stale."""
_FIXED_TYPES = {_QUALITY: "Int32"}
"""Data types of the properties that the specification defines."""
_Payload = build_protobuf_message_class("Payload", _SCHEMA)
Find = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]


class _UnknownDataTypeError(Exception):
    """A value means nothing without its data type, which is missing or unknown."""


class _SparkplugTopic(NamedTuple):
    """An MQTT topic. `device` is "" for messages of the node itself."""

    group: str
    kind: str
    node: str
    device: str


class Sparkplug:
    """The decoder of the preset `sparkplug`. The Kafka key is the MQTT topic.

    A session is an edge node. A row is a metric of a device, or of the node itself with device "". Its key is the alias
    as text, or the name if it has none. A value that is sent late, with `is_historical`, has a separate row.
    """

    needs_rows = True

    def decode(self, message: Message) -> Iterable[Event]:
        """Yields one event, or none for commands, states of hosts and tombstones."""
        topic = _parse_sparkplug_topic(message)
        if topic is None or message.value is None:
            return
        payload = _decompress_payload(parse_protobuf_as_dict(_Payload, message.value))
        metrics, device, seq = payload["metrics"], topic.device, payload.get("seq")
        common: dict[str, Any] = {"session": (topic.group, topic.node), "ts": payload.get("timestamp")}
        if topic.kind == "NDEATH":
            yield Event(kind="snapshot", scope=_build_scope_of_node_death(metrics, message.columns), **common)
            return
        if seq is None or seq >= _MODULO:
            found = "no seq" if seq is None else f"seq {seq}, which is above {_MODULO - 1}"
            raise ValueError(f"a message {topic.kind} has {found}")
        common |= {"seq": seq, "after": seq - 1}
        rows = (
            []
            if topic.kind == "DDEATH"
            else [_convert_metric_to_row(metric, device, message.columns) for metric in metrics]
        )
        if topic.kind.endswith("DATA"):
            yield Event(rows=rows, **common)
            return
        _require_unique_metric_aliases(metrics)
        scope = {"device": device} if device else {}
        yield Event(kind="snapshot", restart=not device, scope=scope, rows=rows, **common)

    def complete(self, values: dict[str, Any], find: Find) -> Mapping[str, Any]:
        """Returns the value of a metric that was sent without its data type, if its row has the type from a birth."""
        if values.get("untyped") is None:
            return {}
        known = values if "datatype" in values else find(values | {"historical": False}) or {}
        kind = known.get("datatype")
        if kind not in _TYPES:
            return {}
        try:
            found = _build_columns_of_metric_value(_decode_metric_value(_parse_value_field(values["untyped"]), kind))
        except (_UnknownDataTypeError, ValueError, struct.error):
            return {}
        return {name: value for name, value in found.items() if name in values}

    def narrow(self, scope: Mapping[str, Any], find: Find) -> Mapping[str, Any] | None:
        """Returns no scope for the death of an earlier birth than the node's present one, or all rows for its death."""
        if "metric" not in scope:
            return scope
        key = {"device": "", "metric": _BIRTH, "name": _BIRTH, "historical": False}
        birth = (find(key) or {}).get("number")
        return {} if birth is None or birth == scope["number"] else None


def _parse_sparkplug_topic(message: Message) -> _SparkplugTopic | None:
    """Returns the MQTT topic; None for commands and states of hosts. Raises ValueError if it is not of Sparkplug."""
    parts = (decode_utf8_or_none(message.key) or "").split("/")
    if "STATE" in parts[:2]:
        return None
    if parts[0] != "spBv1.0" or len(parts) < _DEVICE_PLACE:
        raise ValueError("the Kafka key is no MQTT topic of Sparkplug, such as spBv1.0/group/NDATA/node")
    _, group, kind, node, *rest = parts
    device = "/".join(rest)
    if kind in {"NCMD", "DCMD"}:
        return None
    if kind not in {"NBIRTH", "NDATA", "NDEATH", "DBIRTH", "DDATA", "DDEATH"}:
        raise ValueError(f"a message {kind} is unknown")
    is_of_device = kind.startswith("D")
    if bool(device) != is_of_device or (rest and not is_of_device):
        raise ValueError(f"the topic of a message {kind} has {'no' if is_of_device else 'a'} device")
    return _SparkplugTopic(group, kind, node, device)


def _build_scope_of_node_death(metrics: list[dict[str, Any]], columns: Collection[str]) -> dict[str, Any]:
    """Returns the number of the birth that has died, as `Sparkplug.narrow` reads it; empty if the death has none."""
    births = [_decode_metric_value(one, "UInt64") for one in metrics if one.get("name") == _BIRTH]
    if not births or not isinstance(births[0], int) or not {"metric", "number"} <= {*columns}:
        return {}
    return {"metric": _BIRTH, "number": births[0]}


def _require_unique_metric_aliases(metrics: list[dict[str, Any]]) -> None:
    names: dict[int, Any] = {}
    for metric in metrics:
        alias, name = metric.get("alias"), metric.get("name")
        if alias is not None and names.setdefault(alias, name) != name:
            raise ValueError(f"the metrics {names[alias]!r} and {name!r} have the same alias {alias}")


def _convert_metric_to_row(metric: dict[str, Any], device: str, columns: Collection[str]) -> Put:
    """Returns the row of a metric."""
    name, alias = metric.get("name"), metric.get("alias")
    if name is None and alias is None:
        raise ValueError("a metric has neither a name nor an alias")
    kind = _get_data_type_name(metric.get("datatype"))
    try:
        values = _build_columns_of_metric_value(_decode_metric_value(metric, kind))
    except _UnknownDataTypeError:
        if not {"untyped", "datatype"} <= {*columns}:
            raise ValueError(
                f"the value {_select_value_field(metric)} of metric {name or alias} means nothing without its data "
                "type; declare the columns untyped and datatype as the preset does, or let the node send data types"
            ) from None
        values = _build_columns_of_metric_value(None) | {"untyped": _select_value_field(metric)}
    values["at"] = metric.get("timestamp")
    properties = _decode_metric_properties(metric.get("properties", {}))
    quality = properties.get(_QUALITY)
    values["quality"] = quality if type(quality) is int else None
    if "properties" in metric:
        values["properties"] = properties
    if name is not None:
        values["name"] = name
    if kind:
        values["datatype"] = kind
    own = (
        _quote_name_that_looks_like_alias(name)
        if name is not None and (alias is None or name == _BIRTH)
        else str(alias)
    )
    key = {"device": device, "metric": own, "historical": metric.get("is_historical", False)}
    return Put(key | ({} if name is None else {"name": name}), values)


def _quote_name_that_looks_like_alias(name: str) -> str:
    """Returns a name as key: a name that could be an alias is quoted."""
    return json.dumps(name, ensure_ascii=False) if name.isdecimal() or name.startswith('"') else name


def _build_columns_of_metric_value(value: Any) -> dict[str, Any]:
    """Returns the columns that depend on the value of a metric; null in those of other types."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {
        "value": value,
        "number": value if is_number and (isinstance(value, float) or int(float(value)) == value) else None,
        "text": value if isinstance(value, str) else None,
        "flag": value if isinstance(value, bool) else None,
        "untyped": None,
    }


def _get_data_type_name(number: int | None) -> str:
    """Returns the name of a data type; "" if there is none, and the number as text if it is not known."""
    if not number:
        return ""
    return _TYPES[number] if number < len(_TYPES) else str(number)


# -- values


def _select_value_field(metric: dict[str, Any]) -> dict[str, Any]:
    """Returns the field of a metric that has its value, as it was sent: `{"int_value": 255}`."""
    return {field: metric[field] for field in _VALUES if field in metric}


def _parse_value_field(text: str) -> dict[str, Any]:
    """Returns the field of a metric that has its value, `{"int_value": 255}`, from its JSON text."""
    found: dict[str, Any] = json.loads(text)
    if "bytes_value" in found:
        found["bytes_value"] = base64.b64decode(found["bytes_value"])
    return found


def _decode_metric_value(metric: dict[str, Any], data_type: str) -> Any:
    """Returns the value of a metric, property or element as JSON has it; None if it is null or missing.

    Args:
        metric: The metric, property or element.
        data_type: Name of its data type, "" if it is not known.

    Raises:
        _UnknownTypeError: The value means nothing without a data type.
        ValueError: The value does not fit its data type.
    """
    field = next((name for name in _VALUES if name in metric), None)
    if field is None or metric.get("is_null"):
        return None
    value = metric[field]
    if field in _SIGNED_IN:
        return _decode_integer_with_sign(field, value, data_type)
    if field == "bytes_value":
        return _decode_bytes_value(value, data_type)
    read = _READERS.get(field)
    return value if read is None else read(value)


def _decompress_payload(payload: dict[str, Any]) -> dict[str, Any]:
    """Returns the payload inside of a compressed one, with the number of the outer one. Others are returned as is."""
    if payload.get("uuid") != _COMPRESSED:
        return payload
    named = {metric.get("name"): metric.get("string_value") for metric in payload["metrics"]}
    algorithm = named.get("algorithm", "DEFLATE")
    if algorithm not in _ZLIB_BITS:
        raise ValueError(f"the payload is compressed by {algorithm!r}, which is not one of {', '.join(_ZLIB_BITS)}")
    stream = zlib.decompressobj(_ZLIB_BITS[algorithm])
    body = stream.decompress(payload.get("body", b""), MAX_BYTES)
    if not stream.eof:
        raise ValueError(f"the compressed payload is incomplete, or has more than {MAX_BYTES:,} bytes")
    found = parse_protobuf_as_dict(_Payload, body)
    return found | {"seq": payload["seq"]} if "seq" in payload else found


def _decode_nested_value(metric: dict[str, Any], data_type: str) -> Any:
    """Returns a value inside of another. One that means nothing without its data type is `{"int_value": 255}`."""
    try:
        return _decode_metric_value(metric, data_type)
    except _UnknownDataTypeError:
        return _select_value_field(metric)


def _decode_integer_with_sign(field: str, value: int, data_type: str) -> int:
    """Returns the integer, with its sign, that is sent as an unsigned `value` in a field of this data type."""
    bits = _SIGNED_BITS.get(data_type)
    if bits is None:
        if data_type not in _UNSIGNED and any(1 << (width - 1) <= value < 1 << width for width in _SIGNED_IN[field]):
            raise _UnknownDataTypeError
        return value
    top = 1 << bits
    if value < top:
        return value - top if value >= top // 2 else value
    # Some senders give a negative number all bits of the field.
    if value < (1 << _SIGNED_IN[field][-1]) - top // 2:
        raise ValueError(f"the integer {value} does not fit into the data type {data_type}")
    return value - (1 << _SIGNED_IN[field][-1])


def _decode_bytes_value(value: bytes, data_type: str) -> Any:
    """Returns the value of a metric that is sent as bytes: bytes, or the elements of an array."""
    if data_type in {"Bytes", "File"}:
        return value
    if data_type.endswith("Array"):
        found = list(islice(_decode_array_elements(value, data_type), _MOST_ELEMENTS + 1))
        if len(found) > _MOST_ELEMENTS:
            raise ValueError(f"an array has more than {_MOST_ELEMENTS:,} elements")
        return replace_non_finite_by_text(found)
    raise _UnknownDataTypeError


def _decode_array_elements(value: bytes, data_type: str) -> Iterator[Any]:
    """Yields the elements of an array that is sent as bytes. `data_type` is its data type, such as `Int8Array`."""
    if data_type == "StringArray":
        *texts, rest = value.split(b"\0")
        if rest:
            raise ValueError("the last text of an array does not end with a zero")
        yield from (text.decode() for text in texts)
    elif data_type == "BooleanArray":
        (count,) = struct.unpack_from("<I", value)
        bits = value[4:]
        if len(bits) != (count + 7) // 8:
            raise ValueError(f"an array of {count} booleans has {len(bits)} bytes")
        yield from (bool(bits[place // 8] & (0x80 >> place % 8)) for place in range(count))
    else:
        yield from (one for (one,) in struct.iter_unpack(f"<{_ARRAYS[data_type]}", value))


def _decode_data_set_rows(data_set: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the rows of a data set, each as a dict by column."""
    columns = data_set["columns"]
    if len(set(columns)) < len(columns):
        raise ValueError("a data set has two columns with the same name")
    kinds = [_get_data_type_name(number) for number in data_set["types"] or [0] * len(columns)]
    return [
        {
            column: _decode_nested_value(element, kind)
            for column, kind, element in zip(columns, kinds, row["elements"], strict=True)
        }
        for row in data_set["rows"]
    ]


def _decode_template(template: dict[str, Any]) -> dict[str, Any]:
    """Returns a template whose metrics and parameters have `datatype` as text, and `value`."""
    return template | {
        name: [_decode_template_member(one) for one in template[name]] for name in ("metrics", "parameters")
    }


def _decode_template_member(member: dict[str, Any]) -> dict[str, Any]:
    kind = _get_data_type_name(member.get("datatype", member.get("type")))
    found = {name: item for name, item in member.items() if name not in {*_VALUES, "datatype", "type", "properties"}}
    if kind:
        found["datatype"] = kind
    if "properties" in member:
        found["properties"] = _decode_metric_properties(member["properties"])
    return found | {"value": _decode_nested_value(member, kind)}


def _decode_metric_properties(property_set: dict[str, Any]) -> dict[str, Any]:
    """Returns the properties of a metric by name."""
    pairs = zip(property_set.get("keys", ()), property_set.get("values", ()), strict=True)
    # The specification fixes this type, so that senders may leave it out of data.
    return {
        name: _decode_nested_value(one, _get_data_type_name(one.get("type")) or _FIXED_TYPES.get(name, ""))
        for name, one in pairs
    }


_READERS: dict[str, Callable[[Any], Any]] = {
    "dataset_value": _decode_data_set_rows,
    "template_value": _decode_template,
    "propertyset_value": _decode_metric_properties,
    "propertysets_value": lambda value: [_decode_metric_properties(item) for item in value["propertyset"]],
}
"""How values are read that have parts, by field."""
