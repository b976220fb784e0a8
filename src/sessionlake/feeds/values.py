"""Converts values of messages to the types of a feed's columns. A value that does not fit exactly is an error.

`from` is the setting of a column that says how its values are written in messages:

| type | Python value here | fits without `from` | `from` |
|---|---|---|---|
| boolean | bool | true, false | |
| tinyint, smallint, int, bigint | int | a JSON integer in range | text |
| float, double | float | a JSON number | text |
| decimal(p,s) | Decimal | a JSON number with at most `s` decimals | text, base64 (unscaled, big-endian) |
| string | str | a text | digits (a number's text, as sent) |
| date | date | an ISO text | iso, days |
| timestamp, timestamp_ntz | datetime | an ISO text | iso, epoch_s, epoch_ms, epoch_us, epoch_ns |
| binary | bytes | | base64 |
| variant | str | any value, as JSON text | |
| array<type> | list | an array | as for the elements |
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

from sessionlake.feeds.numbers import (
    INTEGER,
    MOST_DIGITS,
    NUMBER,
    BadValueError,
    NumberText,
    convert_to_decimal,
    decode_base64,
    parse_number_text,
    require_exact_decimal,
    require_finite_float,
    require_integer_in_range,
)
from sessionlake.feeds.paths import ObjectEntryElement, PathConstant
from sessionlake.feeds.times import (
    convert_days_to_date,
    convert_to_timestamp,
    parse_iso_date,
    require_time_with_zone,
    require_time_without_zone,
)
from sessionlake.protocol.columns import INTEGER_BITS, TYPE_ALIASES

Convert = Callable[[Any], Any]
"""Converts a message's value, which is not null, to a column's type. Raises ValueError if it does not fit."""

_HOW = {
    "boolean": (), "float": ("text",), "double": ("text",), "decimal": ("text", "base64"), "string": ("digits",),
    "date": ("iso", "days"), "timestamp": ("iso", "epoch_s", "epoch_ms", "epoch_us", "epoch_ns"),
    "timestamp_ntz": ("iso", "epoch_s", "epoch_ms", "epoch_us", "epoch_ns"), "binary": ("base64",), "variant": (),
    **dict.fromkeys(INTEGER_BITS, ("text",)),
}  # fmt: skip
"""The allowed values of `from`, by type."""


@dataclass(frozen=True)
class FeedColumn:
    """A column that a feed declares.

    Attributes:
        name: Name of the column.
        sql: Spark SQL type in its normal form: `bigint`, `decimal(20,10)`, `array<string>`.
        how: The setting `from`, which says how values are written in messages; None if it is not set.
        convert: Converts a message's value, which is not null, to the column's type.
        convert_python: The same for a decoder's value, which may also have Python's type for the column: a `datetime`.
        constant: Converts the text of a constant to the column's type.
    """

    name: str
    sql: str
    how: str | None
    convert: Convert
    convert_python: Convert
    constant: Convert

    def __reduce__(self) -> tuple[Callable[..., FeedColumn], tuple[str, str, str | None]]:
        """Pickles the declaration, from which the functions are made again."""
        return parse_feed_column, (self.name, self.sql, self.how)


def parse_feed_column(name: str, sql_type: str, encoding: str | None = None) -> FeedColumn:
    """Parses a column's declaration. The type may be in any case, and an alias such as `long`.

    Raises:
        ValueError: The type or `from` is not allowed. The text names the column and what is allowed.
    """
    normal = re.sub(r"\s+", "", sql_type.lower())
    if inner := re.fullmatch(r"array<(.*)>", normal):
        element = parse_feed_column(name, inner[1], encoding)
        of_array = (
            partial(_convert_array, convert=element.convert),
            partial(_convert_array, convert=element.convert_python),
        )
        return FeedColumn(name, f"array<{element.sql}>", encoding, *of_array, _refuse_constant_for_array_column)
    normal = TYPE_ALIASES.get(normal, normal)
    base, precision, scale = _parse_type_with_precision(name, normal)
    if base not in _HOW:
        types = ", ".join(sorted({*_HOW} - {"decimal"})) + ", decimal(p,s), array<type>"
        raise ValueError(f"column {name!r}: type {sql_type!r} is not one of {types}")
    if encoding is not None and encoding not in _HOW[base]:
        allowed = f"one of {', '.join(_HOW[base])}" if _HOW[base] else "not taken"
        raise ValueError(f"column {name!r}: from: {encoding!r} of type {normal} is {allowed}")
    if base == "binary" and encoding is None:
        raise ValueError(
            f"column {name!r}: JSON has no bytes; say how they are written, {{type: binary, from: base64}}"
        )
    convert = _choose_converter(base, encoding, precision, scale)
    normal = f"decimal({precision},{scale})" if base == "decimal" else normal
    convert_python = _choose_converter_of_python_values(base, convert, precision, scale)
    return FeedColumn(name, normal, encoding, convert, convert_python, _choose_constant_parser(base, precision, scale))


def _choose_constant_parser(sql_type: str, precision: int, scale: int) -> Convert:
    """Returns the function that parses a constant's text: a number, an ISO time, or bytes in base64."""
    if sql_type == "boolean":
        return _parse_boolean
    return _choose_converter(
        sql_type, next((how for how in ("text", "iso", "base64") if how in _HOW[sql_type]), None), precision, scale
    )


def _parse_type_with_precision(column_name: str, sql_type: str) -> tuple[str, int, int]:
    """Returns the name, precision and scale of a decimal type; any other type unchanged, with 0 and 0."""
    found = re.fullmatch(r"decimal(?:\((\d+)(?:,(\d+))?\))?", sql_type)
    if found is None:
        return sql_type, 0, 0
    precision, scale = int(found[1] or 0), int(found[2] or 0)
    if not found[1] or not 1 <= precision <= MOST_DIGITS or scale > precision:
        raise ValueError(
            f"column {column_name!r}: write decimal(p,s) with 1 to {MOST_DIGITS} digits, s of them decimals"
        )
    return "decimal", precision, scale


def _choose_converter(sql_type: str, encoding: str | None, precision: int, scale: int) -> Convert:
    """Returns the function that converts values to a type. `precision` and `scale` are 0 unless it is a decimal."""
    if sql_type in INTEGER_BITS:
        top = 2 ** (INTEGER_BITS[sql_type] - 1)
        return lambda value: require_integer_in_range(
            parse_number_text(value, INTEGER, int) if encoding == "text" else value, top
        )
    if sql_type in {"float", "double"}:
        return lambda value: require_finite_float(
            parse_number_text(value, NUMBER, Decimal) if encoding == "text" else value, sql_type
        )
    if sql_type == "decimal":
        return lambda value: require_exact_decimal(convert_to_decimal(value, encoding, scale), precision, scale)
    if sql_type == "date":
        return convert_days_to_date if encoding == "days" else parse_iso_date
    if sql_type in {"timestamp", "timestamp_ntz"}:
        zone = sql_type == "timestamp"
        return lambda value: convert_to_timestamp(value, encoding or "iso", has_zone=zone)
    return {"boolean": _require_boolean, "binary": decode_base64, "variant": format_json}.get(
        sql_type, _format_number_as_text if encoding == "digits" else _require_text
    )


def _choose_converter_of_python_values(sql_type: str, convert: Convert, precision: int, scale: int) -> Convert:
    """Returns a function that converts a decoder's value to the column's type.

    A value that already has the Python type of the column, such as `int` for bigint, is only checked. `convert`
    converts all others.
    """
    own = _PYTHON_TYPES.get(sql_type)
    if own is None:
        return convert
    plain = (
        _PYTHON_TIMES[sql_type] if sql_type in _PYTHON_TIMES else _choose_converter(sql_type, None, precision, scale)
    )
    return lambda value: plain(value) if type(value) in own else convert(value)


def _refuse_constant_for_array_column(value: Any) -> Any:
    raise BadValueError(f"a constant is of no array: {value!r}")


def _parse_boolean(value: Any) -> bool:
    if value not in {"true", "false"}:
        raise BadValueError("write true or false")
    return bool(value == "true")


def _require_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadValueError("it is not true or false")
    return value


def _require_text(value: Any) -> str:
    if not isinstance(value, str) or isinstance(value, NumberText):
        raise BadValueError("it is no text")
    return value


def _format_number_as_text(value: Any) -> str:
    """Returns a number as text: as it was sent, or in a format with binary numbers as the shortest text."""
    if isinstance(value, bool) or not isinstance(value, NumberText | int | float | Decimal):
        raise BadValueError("it is no number")
    return str(value)


_PYTHON_TIMES: dict[str, Convert] = {
    "date": lambda value: value,
    "timestamp": require_time_with_zone,
    "timestamp_ntz": require_time_without_zone,
}
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(INTEGER_BITS, (int,)), **dict.fromkeys(("float", "double", "decimal"), (int, float, Decimal)),
    "string": (str,), "date": (date,), "timestamp": (datetime,), "timestamp_ntz": (datetime,),
}  # fmt: skip
"""Python's types for values of a column, by the column's type. Other values are converted as those of messages."""


def _convert_array(value: Any, convert: Convert) -> list[Any]:
    if not isinstance(value, list):
        raise BadValueError("it is no array")
    return [None if item is None else convert(item) for item in value]


_encode_scalar = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def format_json(value: Any, *, sort_names: bool = False) -> str:
    """Returns a decoded value as JSON text without spaces. Numbers keep all their digits; bytes become base64."""
    if isinstance(value, dict):
        fields = sorted(value.items()) if sort_names else value.items()
        return (
            "{"
            + ",".join(f"{format_json(name)}:{format_json(item, sort_names=sort_names)}" for name, item in fields)
            + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(format_json(item, sort_names=sort_names) for item in value) + "]"
    if isinstance(value, ObjectEntryElement):
        return format_json({"key": value.key, "value": value.value}, sort_names=sort_names)
    if isinstance(value, NumberText | Decimal):
        return str(value)
    if isinstance(value, bytes):
        return format_json(base64.b64encode(value).decode())
    return _encode_scalar(value)


def convert_constant(constant: PathConstant, column: FeedColumn) -> Any:
    """Converts a constant of the configuration to the type of a column.

    Raises:
        ValueError: The constant does not fit the type. The text names the column.
    """
    try:
        return column.constant(constant.text)
    except ValueError as error:
        raise ValueError(f"column {column.name!r} of type {column.sql}: constant {constant.text!r}: {error}") from None
