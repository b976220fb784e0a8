"""Chooses the type of a column from the values that messages have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sessionlake.feeds.inference.words import is_name_of_exact_number, is_name_of_identifier, is_name_of_time

_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_LEADING_ZERO = re.compile(r"-?0\d")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*")
_INT64 = 2**63
_MOST_DIGITS = 38
_LONGEST = 64
"""Most characters of a number or time that is written as text."""
_YEAR_2000, _YEAR_2100 = 946_684_800, 4_102_444_800
_SCALES = ((2, 4), (4, 6), (8, 10), (18, 18))
"""The scale of a decimal for numbers with up to so many digits after the point, so that there is room for more."""
_LEVEL_SCALE = 10
UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Parts of a second, by unit."""


@dataclass(frozen=True)
class InferredColumnType:
    """The type that is proposed for a column.

    Attributes:
        sql: Spark SQL type.
        how: Value for the column's setting `from`, such as `epoch_ms`; None if the column needs no such setting.
        seen: A remark for the user about the column's values in the sample; "" if there is none.
    """

    sql: str
    how: str | None = None
    seen: str = ""

    @property
    def column_setting(self) -> Any:
        """What to write for the column in the configuration: its type's name, or a mapping with `type` and `from`."""
        return self.sql if self.how is None else {"type": self.sql, "from": self.how}


def infer_column_type(
    field_name: str, values: Sequence[Any], *, is_key: bool = False, is_level: bool = False
) -> InferredColumnType:
    """Chooses the type of a column.

    Args:
        field_name: Name of the field. Digits in a field such as `id` are an identifier and no number; a `price` is
            exact.
        values: Its values in the sample, as parsed JSON.
        is_key: True if the column identifies a row, so that it may not be a double or variant.
        is_level: True if it is a number of an order book's level, which may get up to ten digits after the point.
    """
    present = [value for value in values if value is not None]
    if not present:
        return InferredColumnType("string", seen="only null")
    if all(isinstance(value, str) for value in present):
        return _infer_type_of_texts(field_name, present, is_level=is_level)
    if all(type(value) in (int, Decimal) for value in present):
        return _infer_type_of_numbers(field_name, present, is_key=is_key, is_level=is_level)
    return _infer_type_of_mixed_values(field_name, present, is_key=is_key)


def find_unit_of_epoch_time(number: int | Decimal) -> str | None:
    """Returns the unit in which a number is a time from 2000 to 2100: s, ms, us or ns; None if there is none."""
    return next((unit for unit, parts in UNITS.items() if _YEAR_2000 <= number / parts <= _YEAR_2100), None)


def is_iso_time_with_zone(value: Any) -> bool:
    """Returns True for a text that is a time with a zone in ISO 8601."""
    return isinstance(value, str) and _classify_zone_of_iso_time(value) == "zone"


def _classify_zone_of_iso_time(text: str) -> str | None:
    """Returns `zone` or `local` for a text that is a time with or without a zone; None for another text."""
    if len(text) > _LONGEST or not _TIME.fullmatch(text):
        return None
    try:
        return "local" if datetime.fromisoformat(text).tzinfo is None else "zone"
    except ValueError:
        return None


def _infer_type_of_numbers(name: str, values: Sequence[Any], *, is_key: bool, is_level: bool) -> InferredColumnType:
    if all(type(value) is int for value in values) and not is_level:
        return _infer_type_of_integers(name, values)
    sized = _infer_decimal_type([Decimal(value) for value in values], is_level=is_level)
    return sized if sized is not None and (is_key or is_name_of_exact_number(name)) else InferredColumnType("double")


def _infer_type_of_mixed_values(name: str, values: Sequence[Any], *, is_key: bool) -> InferredColumnType:
    if all(isinstance(value, bool) for value in values):
        return InferredColumnType("boolean")
    if is_key:
        return InferredColumnType("string", seen="values of several types")
    if all(isinstance(value, list) for value in values):
        return _infer_type_of_arrays(name, values)
    is_object = all(isinstance(value, dict) for value in values)
    return InferredColumnType("variant", seen="objects" if is_object else "values of several types")


def _infer_type_of_integers(name: str, values: Sequence[int]) -> InferredColumnType:
    units = {find_unit_of_epoch_time(value) for value in values}
    if is_name_of_time(name) and len(units) == 1 and (unit := units.pop()) is not None:
        return InferredColumnType("timestamp", f"epoch_{unit}")
    if all(-_INT64 <= value < _INT64 for value in values):
        return InferredColumnType("bigint")
    return InferredColumnType("decimal(38,0)", seen=f"up to {max(len(str(abs(value))) for value in values)} digits")


def _infer_decimal_type(numbers: Sequence[Decimal], *, is_level: bool) -> InferredColumnType | None:
    """Returns a decimal type with room for more digits than were seen; None if none has room."""
    scale = max(max(0, -int(number.as_tuple().exponent)) for number in numbers)
    digits = max(max(1, number.adjusted() + 1) for number in numbers)
    least = _LEVEL_SCALE if is_level else 0
    room = next((size for limit, size in _SCALES if scale <= limit and size >= least), None)
    if room is None or digits + room > _MOST_DIGITS:
        return None
    seen = f"up to {digits} digits before the point, {scale} after it"
    return InferredColumnType(f"decimal({min(_MOST_DIGITS, max(10, digits + 4) + room)},{room})", seen=seen)


def _infer_type_of_texts(name: str, values: Sequence[str], *, is_level: bool) -> InferredColumnType:
    if all(_NUMBER.fullmatch(value) and not _LEADING_ZERO.match(value) and len(value) <= _LONGEST for value in values):
        is_integer = all("." not in value for value in values)
        if is_level or not (is_name_of_identifier(name) or (is_integer and not is_name_of_exact_number(name))):
            sized = _infer_decimal_type([Decimal(value) for value in values], is_level=is_level)
            if sized is not None:
                return InferredColumnType(sized.sql, "text", sized.seen)
    if all(_DATE.fullmatch(value) for value in values):
        return InferredColumnType("date")
    kinds = {_classify_zone_of_iso_time(value) for value in values}
    if kinds == {"zone"}:
        return InferredColumnType("timestamp")
    return InferredColumnType("timestamp_ntz") if kinds == {"local"} else InferredColumnType("string")


def _infer_type_of_arrays(name: str, values: Sequence[list[Any]]) -> InferredColumnType:
    items = [item for value in values for item in value]
    if items and not any(isinstance(item, dict | list) for item in items):
        inner = infer_column_type(name, items)
        if inner.how is None and inner.sql in {"string", "bigint", "double", "boolean"}:
            return InferredColumnType(f"array<{inner.sql}>")
    return InferredColumnType("variant", seen="arrays")
