"""Converts what decoder classes yield column by column: many values of one field or column at once.

A value that may be wrong is only marked by its index. `feeds.decode` reads its message again and finds the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from math import isfinite
from typing import Any

from sessionlake.feeds.code import MICROSECONDS, YEAR_1, YEAR_10000, is_decimal_sent_as_text
from sessionlake.feeds.paths import MISSING
from sessionlake.feeds.values import FeedColumn
from sessionlake.protocol.columns import INTEGER_BITS

_WITHOUT_VALUE = frozenset({type(None), type(MISSING)})


def convert_each_value(convert: Callable[[Any], Any], values: Sequence[Any], bad_indices: list[int]) -> list[Any]:
    """Converts values one by one.

    Args:
        convert: Converts a value, or raises an exception.
        values: The values.
        bad_indices: Gets the indices of the values for which `convert` raised an exception.

    Returns:
        The converted values, in order. None stands for each value whose index is in `bad_indices`.
    """
    try:
        return list(map(convert, values))
    except Exception:  # noqa: BLE001 - the loop below finds out which value it was
        found: list[Any] = [None] * len(values)
    for number, value in enumerate(values):
        try:
            found[number] = convert(value)
        except Exception:  # noqa: BLE001 - `feeds.decode` finds the fault again and describes it
            bad_indices.append(number)
    return found


def look_up_or_compute_each(
    cache: dict[Any, Any], compute_at: Callable[[int], Any], values: Sequence[Any], bad_indices: list[int]
) -> list[Any]:
    """Returns a result for each value, from a cache or a function.

    Args:
        cache: The cache: results by value. No result is None.
        compute_at: Returns the result of the value at an index, or raises an exception. May add it to `cache`.
        values: The values.
        bad_indices: Gets the indices of values for which `compute_at` raised an exception. Their results are None.
    """
    try:
        found = list(map(cache.get, values))
    except TypeError:
        found = [None] * len(values)
    for number in [number for number, one in enumerate(found) if one is None]:
        try:
            found[number] = cache.get(values[number]) or compute_at(number)
        except Exception:  # noqa: BLE001 - `feeds.decode` finds the fault again and describes it
            bad_indices.append(number)
    return found


def find_indices_of_bad_integers(values: Sequence[Any], minimum: int, maximum: int) -> list[int]:
    """Returns the indices of values that are neither an int from `minimum` to `maximum` nor None nor `MISSING`."""
    types = set(map(type, values)) - _WITHOUT_VALUE
    if not types:
        return []
    if types == {int}:
        numbers = [value for value in values if type(value) is int]
        if minimum <= min(numbers) and max(numbers) <= maximum:
            return []
    return [
        number for number, value in enumerate(values)
        if type(value) not in _WITHOUT_VALUE and (type(value) is not int or not minimum <= value <= maximum)
    ]  # fmt: skip


def find_indices_of_differences(values: Sequence[Any], expected: Sequence[Any]) -> list[int]:
    """Returns the indices of values that differ, also in type, from the expected ones. `MISSING` never differs."""
    if values.count(MISSING) == len(values):
        return []
    pairs = enumerate(zip(values, expected, strict=True))
    return [at for at, (one, other) in pairs if one is not MISSING and (type(one) is not type(other) or one != other)]


def convert_column_values(values: list[Any], column: FeedColumn, bad_indices: list[int]) -> list[Any]:
    """Returns a column's values, converted. None, `MISSING` and texts of decimals are kept as they are.

    Times may become microseconds. `bad_indices` gets the indices of values that cannot be converted.
    """
    types = set(map(type, values)) - _WITHOUT_VALUE
    found = values if not types else _convert_column_values_of_usual_type(values, column, types)
    if found is not None:
        return found
    keeps_texts = is_decimal_sent_as_text(column)

    def convert_unless_kept(value: Any) -> Any:
        """Returns a value, converted unless it is kept as it is."""
        is_kept = type(value) in _WITHOUT_VALUE or (keeps_texts and type(value) is str)
        return value if is_kept else column.convert_python(value)

    return convert_each_value(convert_unless_kept, values, bad_indices)


def _convert_column_values_of_usual_type(values: list[Any], column: FeedColumn, types: set[type]) -> list[Any] | None:
    """Returns a column's values, converted all at once; None if not all have the type that is usual for the column.

    `types` are the types of the values, without those of None and `MISSING`.
    """
    found: list[Any] | None = None
    if column.sql == "string" or is_decimal_sent_as_text(column):
        found = values if types == {str} else None
    elif column.sql == "boolean":
        found = values if types == {bool} else None
    elif column.sql == "double" and types == {Decimal}:
        numbers = [float(cell) if type(cell) is Decimal else cell for cell in values]
        found = numbers if all(isfinite(number) for number in numbers if type(number) is float) else None
    elif column.sql in INTEGER_BITS and types == {int}:
        top = 2 ** (INTEGER_BITS[column.sql] - 1)
        found = None if find_indices_of_bad_integers(values, -top, top - 1) else values
    elif column.sql.startswith("timestamp") and column.how in MICROSECONDS and types == {int}:
        factor = MICROSECONDS[column.how]
        if not find_indices_of_bad_integers(values, YEAR_1 // factor, YEAR_10000 // factor - 1):
            found = [cell * factor if type(cell) is int else cell for cell in values]
    return found
