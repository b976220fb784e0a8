"""The types of a feed's columns, and how a message's value becomes one of a type. Nothing is converted silently.

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
| array<type> | list | an array | that of its elements |
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


class BadValueError(ValueError):
    """A value does not fit a type. The text says why, without the value."""


Convert = Callable[[Any], Any]
"""Makes a column's value of a message's value that is not null. Raises ValueError if it does not fit."""

_INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_ALIASES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
_HOW = {
    "boolean": (), "float": ("text",), "double": ("text",), "decimal": ("text", "base64"), "string": ("digits",),
    "date": ("iso", "days"), "timestamp": ("iso", "epoch_s", "epoch_ms", "epoch_us", "epoch_ns"),
    "timestamp_ntz": ("iso", "epoch_s", "epoch_ms", "epoch_us", "epoch_ns"), "binary": ("base64",), "variant": (),
    **dict.fromkeys(_INTEGERS, ("text",)),
}  # fmt: skip
"""The words that `from` takes, by type."""
_MICROSECONDS = {
    "epoch_s": Decimal(1_000_000),
    "epoch_ms": Decimal(1000),
    "epoch_us": Decimal(1),
    "epoch_ns": Decimal("0.001"),
}
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the wall clock of `timestamp_ntz`, and UTC of `timestamp`
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_INTEGER = re.compile(r"[+-]?\d+")
_MOST_DIGITS = 38
_LONGEST_TIME = 64
"""Characters of a time's text."""
_LONGEST_NUMBER = 4300
"""Characters of a number's text. What is longer fits no type, and would take long to read."""


class Digits(str):
    """A number of a JSON text, as it is written there. Only where a feed has a column `from: digits`."""

    __slots__ = ()


@dataclass(frozen=True)
class FeedColumn:
    """A column that a feed declares.

    Attributes:
        sql: Spark's name of the type, normalised: `bigint`, `decimal(20,10)`, `array<string>`.
        how: What `from` says; None if it is not set.
        convert: Makes the column's value of a message's.
        constant: Makes the column's value of a text in the configuration.
    """

    name: str
    sql: str
    how: str | None
    convert: Convert
    constant: Convert


def feed_column(name: str, sql: str, how: str | None = None) -> FeedColumn:
    """Parses a column's declaration.

    Raises:
        ValueError: naming what is allowed.
    """
    normal = re.sub(r"\s+", "", sql.lower())
    if inner := re.fullmatch(r"array<(.*)>", normal):
        element = feed_column(name, inner[1], how)
        convert = element.convert
        return FeedColumn(name, f"array<{element.sql}>", how, lambda value: _array(value, convert), _no_constant)
    normal = _ALIASES.get(normal, normal)
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
    return FeedColumn(name, normal, how, convert, _of_constant(base, precision, scale))


def _of_constant(base: str, precision: int, scale: int) -> Convert:
    """The function that reads a constant: numbers from text, times from ISO texts, bytes from base64."""
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
    """The function for a type. Each is given a value that is not null."""
    if base in _INTEGERS:
        top = 2 ** (_INTEGERS[base] - 1)
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
    """The text of a number. Formats that have no text of it give its shortest."""
    if isinstance(value, bool) or not isinstance(value, Digits | int | float | Decimal):
        raise BadValueError("it is no number")
    return str(value)


def _from_text(value: Any, pattern: re.Pattern[str], make: Callable[[str], Any]) -> Any:
    if not isinstance(value, str) or len(value) > _LONGEST_NUMBER or not pattern.fullmatch(value):
        raise BadValueError("it is no text of a number")
    return make(value)


def number_of(value: Any) -> Any:
    """A number as Python has it: `Digits` are read, all else is as it is."""
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
        value = Decimal(repr(value))  # of formats that have no text of a number: its shortest
    if type(value) not in (int, Decimal):
        raise BadValueError("it is no number")
    return Decimal(value)


def _exact(value: Decimal, precision: int, scale: int) -> Decimal:
    """The number with exactly `scale` decimals. No digit is lost."""
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
    """Whole microseconds since 1970 of a number in a unit, `epoch_s` to `epoch_ns`.

    Raises:
        ValueError: it is no number, or has parts of a microsecond.
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
    """A message's time in whole milliseconds since 1970; parts of one are cut off.

    Args:
        how: `iso`, or `epoch_s` to `epoch_ns`.
        from_text: True if the number is in a text.

    Raises:
        ValueError: it is no time, or has parts of a microsecond.
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
    """A value as JSON text, without spaces. Numbers are as exact as they were read."""
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
    """A decimal without the zeros at its end: 1.10 is 1.1, 100 is 100."""
    if not number:
        return "0"
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def row_id_of(values: tuple[Any, ...]) -> str:
    """The canonical text of a key: of one text the text as it is, else a JSON array without spaces."""
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
    """A constant of the configuration as a value of the column that takes it.

    Raises:
        ValueError: it does not fit.
    """
    try:
        return column.constant(constant.text)
    except ValueError as error:
        raise ValueError(f"column {column.name!r} of type {column.sql}: constant {constant.text!r}: {error}") from None
