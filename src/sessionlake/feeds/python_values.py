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


def convert_each(convert: Callable[[Any], Any], given: Sequence[Any], bad: list[int]) -> list[Any]:
    """Converts values one by one.

    Args:
        convert: Converts a value, or raises an exception.
        given: The values.
        bad: Gets the indices of the values for which `convert` raised an exception.

    Returns:
        The converted values, in order. None stands for each value whose index is in `bad`.
    """
    try:
        return list(map(convert, given))
    except Exception:  # noqa: BLE001 - the loop below finds out which value it was
        found: list[Any] = [None] * len(given)
    for number, value in enumerate(given):
        try:
            found[number] = convert(value)
        except Exception:  # noqa: BLE001 - `feeds.decode` finds the fault again and describes it
            bad.append(number)
    return found


def look_up_each(known: dict[Any, Any], find: Callable[[int], Any], given: Sequence[Any], bad: list[int]) -> list[Any]:
    """Returns a result for each value, from a cache or a function.

    Args:
        known: The cache: results by value. No result is None.
        find: Returns the result of the value at an index, or raises an exception. May add it to `known`.
        given: The values.
        bad: Gets the indices of values for which `find` raised an exception. Their results are None.
    """
    try:
        found = list(map(known.get, given))
    except TypeError:
        found = [None] * len(given)
    for number in [number for number, one in enumerate(found) if one is None]:
        try:
            found[number] = known.get(given[number]) or find(number)
        except Exception:  # noqa: BLE001 - `feeds.decode` finds the fault again and describes it
            bad.append(number)
    return found


def find_bad_integers(given: Sequence[Any], least: int, most: int) -> list[int]:
    """Returns the indices of values that are neither an int from `least` to `most` nor None nor `MISSING`."""
    types = set(map(type, given)) - _WITHOUT_VALUE
    if not types:
        return []
    if types == {int}:
        numbers = [value for value in given if type(value) is int]
        if least <= min(numbers) and max(numbers) <= most:
            return []
    return [
        number for number, value in enumerate(given)
        if type(value) not in _WITHOUT_VALUE and (type(value) is not int or not least <= value <= most)
    ]  # fmt: skip


def find_different(given: Sequence[Any], own: Sequence[Any]) -> list[int]:
    """Returns the indices at which two lists have values that differ, also in type. `MISSING` in `given` is ignored."""
    if given.count(MISSING) == len(given):
        return []
    pairs = enumerate(zip(given, own, strict=True))
    return [at for at, (one, other) in pairs if one is not MISSING and (type(one) is not type(other) or one != other)]


def convert_cells(cells: list[Any], column: FeedColumn, bad: list[int]) -> list[Any]:
    """Returns a column's values, converted. None, `MISSING` and texts of decimals are kept as they are.

    Times may become microseconds. `bad` gets the indices of values that cannot be converted.
    """
    types = set(map(type, cells)) - _WITHOUT_VALUE
    found = cells if not types else _convert_cells_of_usual_type(cells, column, types)
    if found is not None:
        return found
    keeps_texts = is_decimal_sent_as_text(column)

    def convert(cell: Any) -> Any:
        """Returns a value, converted unless it is kept as it is."""
        is_kept = type(cell) in _WITHOUT_VALUE or (keeps_texts and type(cell) is str)
        return cell if is_kept else column.convert_python(cell)

    return convert_each(convert, cells, bad)


def _convert_cells_of_usual_type(cells: list[Any], column: FeedColumn, types: set[type]) -> list[Any] | None:
    """Returns a column's values, converted all at once; None if not all have the type that is usual for the column.

    `types` are the types of the values, without those of None and `MISSING`.
    """
    found: list[Any] | None = None
    if column.sql == "string" or is_decimal_sent_as_text(column):
        found = cells if types == {str} else None
    elif column.sql == "boolean":
        found = cells if types == {bool} else None
    elif column.sql == "double" and types == {Decimal}:
        numbers = [float(cell) if type(cell) is Decimal else cell for cell in cells]
        found = numbers if all(isfinite(number) for number in numbers if type(number) is float) else None
    elif column.sql in INTEGER_BITS and types == {int}:
        top = 2 ** (INTEGER_BITS[column.sql] - 1)
        found = None if find_bad_integers(cells, -top, top - 1) else cells
    elif column.sql.startswith("timestamp") and column.how in MICROSECONDS and types == {int}:
        factor = MICROSECONDS[column.how]
        if not find_bad_integers(cells, YEAR_1 // factor, YEAR_10000 // factor - 1):
            found = [cell * factor if type(cell) is int else cell for cell in cells]
    return found
