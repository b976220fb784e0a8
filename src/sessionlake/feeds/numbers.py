"""Converts numbers and bytes of messages exactly. A value that does not fit is an error."""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any


class BadValueError(ValueError):
    """A value of a message does not fit the column's type. The text says why, without showing the value."""


NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


INTEGER = re.compile(r"[+-]?\d+")


MOST_DIGITS = 38


_LONGEST_NUMBER = 4300
"""Most characters of a text that is parsed as a number. A longer one fits no type and would take long to parse."""


class NumberText(str):
    """A JSON number as text, with exactly the digits that were sent. Used by feeds with a column `from: digits`."""

    __slots__ = ()


def parse_number_text(value: Any, pattern: re.Pattern[str], convert: Callable[[str], Any]) -> Any:
    """Returns `convert(value)` of a text that matches the pattern. Raises ValueError for any other value."""
    if not isinstance(value, str) or len(value) > _LONGEST_NUMBER or not pattern.fullmatch(value):
        raise BadValueError("it is no text of a number")
    return convert(value)


def convert_number_text(value: Any) -> Any:
    """Converts `NumberText` to an int, or if they have a point or an exponent to a Decimal. Other values are unchanged.

    A number that no Decimal can hold, such as 1e99999999999999999999, becomes NaN, which fits no column.
    """
    if not isinstance(value, NumberText):
        return value
    if INTEGER.fullmatch(value):
        return int(value)
    try:
        return Decimal(value)
    except InvalidOperation:
        return Decimal("NaN")


@dataclass(frozen=True)
class NumberRange:
    """A range of numbers, without its ends.

    Attributes:
        above: Numbers are greater than this one; None if there is no lower end.
        below: Numbers are less than this one; None if there is no upper end.
    """

    above: int | Decimal | None = None
    below: int | Decimal | None = None

    def contains_number(self, value: Any) -> bool:
        """Returns True for a number in the range, also if it is written as a text. Other values are outside."""
        number = convert_number_text(value)
        if isinstance(number, str) and len(number) <= _LONGEST_NUMBER and NUMBER.fullmatch(number):
            number = convert_number_text(NumberText(number))
        if type(number) is float:
            number = Decimal(repr(number))
        if type(number) not in (int, Decimal) or number != number:  # noqa: PLR0124 - NaN is not equal to itself
            return False
        return (self.above is None or number > self.above) and (self.below is None or number < self.below)


def require_integer_in_range(value: Any, upper_limit: int) -> int:
    """Returns an integer from `-upper_limit` to `upper_limit - 1`. Raises ValueError for any other value."""
    value = convert_number_text(value)
    if type(value) is not int or not -upper_limit <= value < upper_limit:
        raise BadValueError("it is no integer in range")
    return value


def require_finite_float(value: Any, sql_type: str) -> float:
    """Converts a number, which may be an integer, to a double. With base `float`, the result is the nearest float.

    Raises:
        BadValueError: The value is no number, or is beyond the range of the type.
    """
    value = convert_number_text(value)
    if type(value) not in (int, float, Decimal):
        raise BadValueError("it is no number")
    try:
        number = float(value)
        number = struct.unpack("<f", struct.pack("<f", number))[0] if sql_type == "float" else number
    except OverflowError:
        raise BadValueError("it is beyond the type's range") from None
    if not math.isfinite(number):
        raise BadValueError("it is beyond the type's range")
    return number


def convert_to_decimal(value: Any, encoding: str | None, scale: int) -> Decimal:
    """Converts a number to a decimal; `encoding` is the column's `from`. Raises ValueError if it is none."""
    if encoding == "text":
        return Decimal(parse_number_text(value, NUMBER, str))
    if encoding == "base64":
        if isinstance(value, dict) and type(value.get("scale")) is int and abs(value["scale"]) <= MOST_DIGITS:
            value, scale = value.get("value"), value["scale"]  # Kafka Connect's form of decimals with any scale
        return Decimal(int.from_bytes(decode_base64(value), "big", signed=True)).scaleb(-scale)
    value = convert_number_text(value)
    if type(value) is float:
        value = Decimal(repr(value))  # a format with binary doubles: the shortest decimal that gives this double
    if type(value) not in (int, Decimal):
        raise BadValueError("it is no number")
    return Decimal(value)


def require_exact_decimal(value: Decimal, precision: int, scale: int) -> Decimal:
    """Returns the number with exactly `scale` digits after the point. Raises an error if digits would be lost."""
    with localcontext() as context:
        context.prec = 2 * MOST_DIGITS
        try:
            rounded = value.quantize(Decimal(1).scaleb(-scale))
        except InvalidOperation:
            raise BadValueError(f"it has more than {precision} digits") from None
    if rounded != value:
        raise BadValueError(f"it has more than {scale} decimals")
    if len(rounded.as_tuple().digits) > precision:
        raise BadValueError(f"it has more than {precision} digits")
    return rounded


def decode_base64(value: Any) -> bytes:
    """Converts a base64 text to bytes. Raises ValueError for any other value."""
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else _raise_no_bytes_error()
    except binascii.Error:
        raise BadValueError("it is no base64") from None


def _raise_no_bytes_error() -> bytes:
    raise BadValueError("it is no text of bytes")


def replace_non_finite_by_text(value: Any) -> Any:
    """Returns a tree of dicts, lists and values in which NaN and infinities are texts, such as `NaN`."""
    if isinstance(value, dict):
        return {name: replace_non_finite_by_text(item) for name, item in value.items()}
    if isinstance(value, list):
        return [replace_non_finite_by_text(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
