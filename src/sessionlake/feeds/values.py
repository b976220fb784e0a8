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
import binascii
import json
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

from sessionlake.feeds.paths import Constant, Entry
from sessionlake.protocol.columns import INTEGER_BITS, TYPE_ALIASES


class BadValueError(ValueError):
    """A value of a message does not fit the column's type. The text says why, without showing the value."""


Convert = Callable[[Any], Any]
"""Converts a message's value, which is not null, to a column's type. Raises ValueError if it does not fit."""

_HOW = {
    "boolean": (), "float": ("text",), "double": ("text",), "decimal": ("text", "base64"), "string": ("digits",),
    "date": ("iso", "days"), "timestamp": ("iso", "epoch_s", "epoch_ms", "epoch_us", "epoch_ns"),
    "timestamp_ntz": ("iso", "epoch_s", "epoch_ms", "epoch_us", "epoch_ns"), "binary": ("base64",), "variant": (),
    **dict.fromkeys(INTEGER_BITS, ("text",)),
}  # fmt: skip
"""The allowed values of `from`, by type."""
_MICROSECONDS = {
    "epoch_s": Decimal(10**6),
    "epoch_ms": Decimal(1000),
    "epoch_us": Decimal(1),
    "epoch_ns": Decimal("0.001"),
}
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - used for `timestamp_ntz`, which has no zone, and `timestamp` in UTC
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_INTEGER = re.compile(r"[+-]?\d+")
_MOST_DIGITS = 38
_LONGEST_TIME = 64
"""Most characters of a text that is parsed as a time."""
_LONGEST_NUMBER = 4300
"""Most characters of a text that is parsed as a number. A longer one fits no type and would take long to parse."""


class Digits(str):
    """A JSON number as text, with exactly the digits that were sent. Used by feeds with a column `from: digits`."""

    __slots__ = ()


@dataclass(frozen=True)
class FeedColumn:
    """A column that a feed declares.

    Attributes:
        name: Name of the column.
        sql: Spark SQL type in its normal form: `bigint`, `decimal(20,10)`, `array<string>`.
        how: The setting `from`, which says how values are written in messages; None if it is not set.
        convert: Converts a message's value, which is not null, to the column's type.
        constant: Converts the text of a constant to the column's type.
    """

    name: str
    sql: str
    how: str | None
    convert: Convert
    constant: Convert

    def __reduce__(self) -> tuple[Callable[..., FeedColumn], tuple[str, str, str | None]]:
        """Pickles the declaration, from which the functions are made again."""
        return feed_column, (self.name, self.sql, self.how)


def feed_column(name: str, sql: str, how: str | None = None) -> FeedColumn:
    """Parses a column's declaration. The type may be in any case, and an alias such as `long`.

    Raises:
        ValueError: The type or `from` is not allowed. The text names the column and what is allowed.
    """
    normal = re.sub(r"\s+", "", sql.lower())
    if inner := re.fullmatch(r"array<(.*)>", normal):
        element = feed_column(name, inner[1], how)
        convert = element.convert
        return FeedColumn(name, f"array<{element.sql}>", how, lambda value: _array(value, convert), _no_constant)
    normal = TYPE_ALIASES.get(normal, normal)
    base, precision, scale = _decimal(name, normal)
    if base not in _HOW:
        types = ", ".join(sorted({*_HOW} - {"decimal"})) + ", decimal(p,s), array<type>"
        raise ValueError(f"column {name!r}: type {sql!r} is not one of {types}")
    if how is not None and how not in _HOW[base]:
        allowed = f"one of {', '.join(_HOW[base])}" if _HOW[base] else "not taken"
        raise ValueError(f"column {name!r}: from: {how!r} of type {normal} is {allowed}")
    if base == "binary" and how is None:
        raise ValueError(
            f"column {name!r}: JSON has no bytes; say how they are written, {{type: binary, from: base64}}"
        )
    convert = _converter(base, how, precision, scale)
    normal = f"decimal({precision},{scale})" if base == "decimal" else normal
    return FeedColumn(name, normal, how, convert, _of_constant(base, precision, scale))


def _of_constant(base: str, precision: int, scale: int) -> Convert:
    """Returns the function that parses a constant's text: a number, an ISO time, or bytes in base64."""
    if base == "boolean":
        return _boolean_text
    return _converter(
        base, next((how for how in ("text", "iso", "base64") if how in _HOW[base]), None), precision, scale
    )


def _decimal(name: str, sql: str) -> tuple[str, int, int]:
    found = re.fullmatch(r"decimal(?:\((\d+)(?:,(\d+))?\))?", sql)
    if found is None:
        return sql, 0, 0
    precision, scale = int(found[1] or 0), int(found[2] or 0)
    if not found[1] or not 1 <= precision <= _MOST_DIGITS or scale > precision:
        raise ValueError(f"column {name!r}: write decimal(p,s) with 1 to {_MOST_DIGITS} digits, s of them decimals")
    return "decimal", precision, scale


def _converter(base: str, how: str | None, precision: int, scale: int) -> Convert:
    """Returns the function that converts values to a type. `precision` and `scale` are 0 unless it is a decimal."""
    if base in INTEGER_BITS:
        top = 2 ** (INTEGER_BITS[base] - 1)
        return lambda value: _integer(_from_text(value, _INTEGER, int) if how == "text" else value, top)
    if base in {"float", "double"}:
        return lambda value: _float(_from_text(value, _NUMBER, Decimal) if how == "text" else value, base)
    if base == "decimal":
        return lambda value: _exact(_decimal_of(value, how, scale), precision, scale)
    if base == "date":
        return _days if how == "days" else _date
    if base in {"timestamp", "timestamp_ntz"}:
        zone = base == "timestamp"
        return lambda value: _timestamp(value, how or "iso", zone=zone)
    return {"boolean": _boolean, "binary": _bytes, "variant": json_text}.get(
        base, _digits if how == "digits" else _text
    )


def _no_constant(value: Any) -> Any:
    raise BadValueError(f"a constant is of no array: {value!r}")


def _boolean_text(value: Any) -> bool:
    if value not in {"true", "false"}:
        raise BadValueError("write true or false")
    return bool(value == "true")


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadValueError("it is not true or false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or isinstance(value, Digits):
        raise BadValueError("it is no text")
    return value


def _digits(value: Any) -> str:
    """Returns a number as text: as it was sent, or in a format with binary numbers as the shortest text."""
    if isinstance(value, bool) or not isinstance(value, Digits | int | float | Decimal):
        raise BadValueError("it is no number")
    return str(value)


def _from_text(value: Any, pattern: re.Pattern[str], make: Callable[[str], Any]) -> Any:
    if not isinstance(value, str) or len(value) > _LONGEST_NUMBER or not pattern.fullmatch(value):
        raise BadValueError("it is no text of a number")
    return make(value)


def number_of(value: Any) -> Any:
    """Converts `Digits` to an int, or if they have a point or an exponent to a Decimal. Other values are unchanged."""
    if not isinstance(value, Digits):
        return value
    return int(value) if _INTEGER.fullmatch(value) else Decimal(value)


def _integer(value: Any, top: int) -> int:
    value = number_of(value)
    if type(value) is not int or not -top <= value < top:
        raise BadValueError("it is no integer in range")
    return value


def _float(value: Any, base: str) -> float:
    value = number_of(value)
    if type(value) not in (int, float, Decimal):
        raise BadValueError("it is no number")
    try:
        number = float(value)
        number = struct.unpack("<f", struct.pack("<f", number))[0] if base == "float" else number
    except OverflowError:
        raise BadValueError("it is beyond the type's range") from None
    if not math.isfinite(number):
        raise BadValueError("it is beyond the type's range")
    return number


def _decimal_of(value: Any, how: str | None, scale: int) -> Decimal:
    if how == "text":
        return Decimal(_from_text(value, _NUMBER, str))
    if how == "base64":
        return Decimal(int.from_bytes(_bytes(value), "big", signed=True)).scaleb(-scale)
    value = number_of(value)
    if type(value) is float:
        value = Decimal(repr(value))  # a format with binary doubles: the shortest decimal that gives this double
    if type(value) not in (int, Decimal):
        raise BadValueError("it is no number")
    return Decimal(value)


def _exact(value: Decimal, precision: int, scale: int) -> Decimal:
    """Returns the number with exactly `scale` digits after the point. Raises an error if digits would be lost."""
    with localcontext() as context:
        context.prec = 2 * _MOST_DIGITS
        try:
            rounded = value.quantize(Decimal(1).scaleb(-scale))
        except InvalidOperation:
            raise BadValueError(f"it has more than {precision} digits") from None
    if rounded != value:
        raise BadValueError(f"it has more than {scale} decimals")
    if len(rounded.as_tuple().digits) > precision:
        raise BadValueError(f"it has more than {precision} digits")
    return rounded


def _date(value: Any) -> date:
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        raise BadValueError("it is no date as 2026-01-31")
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise BadValueError("it is no date as 2026-01-31") from None


def _days(value: Any) -> date:
    days = _integer(value, 2**31)
    try:
        return date(1970, 1, 1) + timedelta(days=days)
    except OverflowError:
        raise BadValueError("it is beyond the years 1 to 9999") from None


def _timestamp(value: Any, how: str, *, zone: bool) -> datetime:
    found = _iso(value, zone=zone) if how == "iso" else _since_epoch(value, how)
    return found.replace(tzinfo=UTC) if zone and found.tzinfo is None else found


def _iso(value: Any, *, zone: bool) -> datetime:
    if not isinstance(value, str) or len(value) > _LONGEST_TIME:
        raise BadValueError("it is no time as 2026-01-31T12:00:00Z")
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise BadValueError("it is no time as 2026-01-31T12:00:00Z") from None
    if zone == (found.tzinfo is None):
        raise BadValueError("it names no time zone" if zone else "it names a time zone")
    return found.astimezone(UTC) if zone else found


def microseconds(value: Any, how: str) -> int:
    """Converts a number since 1970 to whole microseconds. `how` is its unit, `epoch_s` to `epoch_ns`.

    Raises:
        ValueError: The value is not a number, or has fractions of a microsecond.
    """
    value = number_of(value)
    if type(value) is float:
        value = Decimal(repr(value))
    if type(value) not in (int, Decimal):
        raise BadValueError("it is no number")
    if type(value) is Decimal and abs(value.adjusted()) > _MOST_DIGITS:
        raise BadValueError("it is beyond the years 1 to 9999")
    with localcontext() as context:
        context.prec = 2 * _MOST_DIGITS
        micros = Decimal(value) * _MICROSECONDS[how]
    if micros != micros.to_integral_value():
        raise BadValueError("it has parts of a microsecond")
    return int(micros)


def milliseconds_of(value: Any, how: str, *, from_text: bool = False) -> int:
    """Converts an event time to milliseconds since 1970, rounded down.

    Args:
        value: The time in the message.
        how: `iso` for an ISO 8601 text with a time zone. `epoch_s`, `epoch_ms`, `epoch_us` or `epoch_ns` for a number.
        from_text: True if the number is written as a text.

    Raises:
        ValueError: The value is not such a time, or has fractions of a microsecond.
    """
    if how == "iso":
        return (_iso(value, zone=True) - _EPOCH.replace(tzinfo=UTC)) // timedelta(milliseconds=1)
    number = _from_text(value, _NUMBER, Decimal) if from_text else value
    return microseconds(number, how) // 1000


def _since_epoch(value: Any, how: str) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=microseconds(value, how))
    except OverflowError:
        raise BadValueError("it is beyond the years 1 to 9999") from None


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else _no_bytes()
    except binascii.Error:
        raise BadValueError("it is no base64") from None


def _no_bytes() -> bytes:
    raise BadValueError("it is no text of bytes")


def _array(value: Any, convert: Convert) -> list[Any]:
    if not isinstance(value, list):
        raise BadValueError("it is no array")
    return [None if item is None else convert(item) for item in value]


def json_text(value: Any) -> str:
    """Returns a decoded value as JSON text without spaces. Numbers keep all their digits; bytes become base64."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json_text(str(name))}:{json_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    if isinstance(value, Entry):
        return json_text({"key": value.key, "value": value.value})
    if isinstance(value, Digits | Decimal):
        return str(value)
    if isinstance(value, bytes):
        return json_text(base64.b64encode(value).decode())
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def shortest(number: Decimal) -> str:
    """Returns a decimal as text without zeros at the end of its fraction: 1.10 gives `1.1`, 100 gives `100`."""
    if not number:
        return "0"
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def row_id_of(values: tuple[Any, ...]) -> str:
    """Returns the row id of a key: equal keys give the same text.

    The id of a single text is that text. All other keys give a JSON array without spaces.

    Args:
        values: The row's values in the key columns.
    """
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return "[" + ",".join(map(_key_text, values)) + "]"


def _key_text(value: Any) -> str:
    if isinstance(value, Decimal):
        return shortest(value)
    if isinstance(value, datetime | date):
        return json.dumps(value.isoformat())
    return json_text(value)


def typed_constant(constant: Constant, column: FeedColumn) -> Any:
    """Converts a constant of the configuration to the type of a column.

    Raises:
        ValueError: The constant does not fit the type. The text names the column.
    """
    try:
        return column.constant(constant.text)
    except ValueError as error:
        raise ValueError(f"column {column.name!r} of type {column.sql}: constant {constant.text!r}: {error}") from None
