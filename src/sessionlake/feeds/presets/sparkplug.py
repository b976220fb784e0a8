"""Reads Sparkplug B: Protobuf payloads of MQTT topics such as `spBv1.0/plant/DDATA/node/device`.

Source: Eclipse Sparkplug specification 3.0. Its rules that matter here: a node's messages are counted from 0 to 255 and
again from 0; a birth names all metrics, and data may name them by alias alone; a death of a node has no number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

from sessionlake.feeds.decoder import Event, Message, Put
from sessionlake.feeds.trees import message_class, parse_tree

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
_ARRAYS = {
    "Int8Array": "b", "Int16Array": "h", "Int32Array": "i", "Int64Array": "q", "UInt8Array": "B", "UInt16Array": "H",
    "UInt32Array": "I", "UInt64Array": "Q", "FloatArray": "f", "DoubleArray": "d", "DateTimeArray": "q",
}  # fmt: skip
"""The code of `struct` for the elements of each array of numbers."""
_FIRST_NEGATIVE = {"int_value": 2**31, "long_value": 2**63}
"""From here on, an integer without a data type could be negative."""
_VALUES = (
    "int_value", "long_value", "float_value", "double_value", "boolean_value", "string_value", "bytes_value",
    "dataset_value", "template_value",
)  # fmt: skip
_PARTS = 4
"""Parts of the shortest topic, `spBv1.0/group/type/node`."""
_Payload = message_class("Payload", _SCHEMA)


class Sparkplug:
    """The decoder of the preset `sparkplug`. The Kafka key is the MQTT topic.

    A session is an edge node. A row is a metric of a device, or of the node itself with device "". Its key is the alias
    as text, or the name if it has none. A value that is sent late, with `is_historical`, has a separate row.
    """

    def decode(self, message: Message) -> Iterable[Event]:
        """Yields one event, or none for commands, states of hosts and tombstones."""
        parts = message.key_text().split("/")
        if message.value is None or "STATE" in parts[:2]:
            return
        if parts[0] != "spBv1.0" or len(parts) < _PARTS:
            raise ValueError("the Kafka key is no MQTT topic of Sparkplug, such as spBv1.0/group/NDATA/node")
        _, group, kind, node, *rest = parts
        device = "/".join(rest)
        if kind in {"NCMD", "DCMD"}:
            return
        payload = parse_tree(_Payload, message.value)
        common: dict[str, Any] = {"session": (group, node), "ts": payload.get("timestamp")}
        rows = (_row(metric, device) for metric in payload["metrics"])
        if kind == "NDEATH":
            yield Event(kind="snapshot", **common)
            return
        if "seq" not in payload:
            raise ValueError(f"a message {kind} has no seq")
        common |= {"seq": payload["seq"], "after": payload["seq"] - 1}
        match kind:
            case "NBIRTH":
                yield Event(kind="snapshot", restart=True, rows=rows, **common)
            case "DBIRTH":
                yield Event(kind="snapshot", scope={"device": device}, rows=rows, **common)
            case "DDEATH":
                yield Event(kind="snapshot", scope={"device": device}, **common)
            case "NDATA" | "DDATA":
                yield Event(rows=rows, **common)
            case _:
                raise ValueError(f"a message {kind} is unknown")


def _row(metric: dict[str, Any], device: str) -> Put:
    name, alias = metric.get("name"), metric.get("alias")
    if name is None and alias is None:
        raise ValueError("a metric has neither a name nor an alias")
    value = _metric_value(metric)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    values = {
        "value": value,
        "number": value if is_number and (isinstance(value, float) or int(float(value)) == value) else None,
        "text": value if isinstance(value, str) else None,
        "flag": value if isinstance(value, bool) else None,
        "at": metric.get("timestamp"),
    }
    if name is not None:
        values["name"] = name
    if "datatype" in metric:
        values["datatype"] = _type_name(metric["datatype"])
    key = {"device": device, "metric": str(alias if alias is not None else name)}
    return Put(key | {"historical": metric.get("is_historical", False)}, values)


def _type_name(number: int) -> str:
    return _TYPES[number] if number < len(_TYPES) else str(number)


def _metric_value(metric: dict[str, Any]) -> Any:
    """Returns the value of a metric, property or element; None if it is null or missing."""
    field = next((name for name in _VALUES if name in metric), None)
    if field is None or metric.get("is_null"):
        return None
    value, number = metric[field], metric.get("datatype", metric.get("type"))
    kind = _type_name(number) if number else ""
    if field in _FIRST_NEGATIVE:
        return _integer(field, value, kind)
    if field == "bytes_value":
        return [*_array(value, kind)] if kind.endswith("Array") else value
    if field == "dataset_value":
        return _data_set(value)
    if field == "template_value":
        return value | {"metrics": [one | {"value": _metric_value(one)} for one in value["metrics"]]}
    return value


def _integer(field: str, value: int, kind: str) -> int:
    """Returns an integer with its sign. It is sent without a sign."""
    if bits := _SIGNED_BITS.get(kind):
        value &= (1 << bits) - 1
        return value - (1 << bits) if value >= 1 << (bits - 1) else value
    if not kind and value >= _FIRST_NEGATIVE[field]:
        raise ValueError(f"the integer {value} has no data type, so it could be negative; let the node send data types")
    return value


def _array(value: bytes, kind: str) -> Iterator[Any]:
    if kind == "StringArray":
        yield from (text.decode() for text in value.split(b"\0")[:-1])
    elif kind == "BooleanArray":
        (count,) = struct.unpack_from("<I", value)
        bits = value[4:]
        if len(bits) != (count + 7) // 8:
            raise ValueError(f"an array of {count} booleans has {len(bits)} bytes")
        yield from (bool(bits[place // 8] & (0x80 >> place % 8)) for place in range(count))
    elif code := _ARRAYS.get(kind):
        yield from (one for (one,) in struct.iter_unpack(f"<{code}", value))
    else:
        raise ValueError(f"the data type {kind} is unknown")


def _data_set(value: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the rows of a data set, each as a dict by column."""
    types = value["types"]
    return [
        {
            column: _metric_value(element | {"datatype": kind})
            for column, kind, element in zip(value["columns"], types, row["elements"], strict=True)
        }
        for row in value["rows"]
    ]
