"""Finds the rows of messages whose rows are arrays, such as the levels of an order book."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sessionlake.feeds.inference.arrays import (
    ArrayPlace,
    ElementsOfArrays,
    PathsOfColumns,
    ProposedTable,
    choose_word_for_book_side,
    find_empty_arrays_of_book_sides,
    find_rule_path_of_each_array,
    is_named_as_book_side,
)
from sessionlake.feeds.inference.kinds import MessageKindGroup
from sessionlake.feeds.inference.types import InferredColumnType, infer_column_type
from sessionlake.feeds.inference.words import OF_PRICE, OF_QUANTITY, SIDES

_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE]-?\d+)?")


@dataclass
class LevelPositions:
    """Positions in an element that is an array.

    Attributes:
        side: Position of a text that says the side of a book; None if there is none.
        numbers: Positions of numbers.
    """

    side: int | None = None
    numbers: list[int] = field(default_factory=list)


def propose_table_of_book_levels(
    kinds: Sequence[MessageKindGroup], elements: ElementsOfArrays, positions: dict[ArrayPlace, LevelPositions]
) -> ProposedTable:
    """Returns the table whose rows are arrays.

    Args:
        kinds: Kinds of messages.
        elements: The arrays of the sample.
        positions: What the positions of their elements mean, for each array of arrays with numbers.
    """
    chosen = _choose_arrays_of_book_levels(elements, positions)
    sided = any(is_named_as_book_side(elements[place][0]) or positions[place].side is not None for place in chosen)
    example = positions[max(chosen, key=lambda place: len(elements[place][1]))]
    objects = _find_arrays_of_level_objects(elements) if sided else {}
    empty = find_empty_arrays_of_book_sides(elements, chosen | objects.keys()) if sided else set()
    positions |= dict.fromkeys(empty, example)
    words = {
        str(item[positions[place].side])
        for place in chosen
        if positions[place].side is not None
        for item in elements[place][1]
    }
    names = ("price", "qty") if sided else tuple(f"c{number}" for number in range(len(example.numbers)))
    columns = {"side": InferredColumnType("string")} if sided else {}
    for index, name in enumerate(names[: max(len(positions[place].numbers) for place in chosen)]):
        values = [item[positions[place].numbers[index]] for place in chosen for item in elements[place][1]
                  if index < len(positions[place].numbers) and len(item) > positions[place].numbers[index]]  # fmt: skip
        columns[name] = infer_column_type("price" if sided else name, values, is_key=True, is_level=True)
    table = ProposedTable([], columns, ["side", "price"] if sided else ["c0"])
    for number, group in enumerate(kinds):
        paths = find_rule_path_of_each_array(
            group, {path for kind, path in chosen | empty | objects.keys() if kind == number}
        )
        parts = []
        for raw, path in paths.items():
            source, names_of_object = elements[number, raw][0], objects.get((number, raw))
            if names_of_object is not None:
                row = dict(
                    zip(columns, (f"={choose_word_for_book_side(source.name, words)}", *names_of_object), strict=False)
                )
            else:
                row = _map_columns_to_level_paths(source.name, positions[number, raw], columns, words)
            parts.append({"each": path, "row": row})
        if parts:
            table.kinds.append(group)
            table.rows.append(parts)
    return table


def _choose_arrays_of_book_levels(
    elements: ElementsOfArrays, positions: dict[ArrayPlace, LevelPositions]
) -> set[ArrayPlace]:
    """Returns the arrays that are levels of the same book: those named as sides, and others that say the side.

    Arrays that say the side and have more numbers than the levels, such as trades with a time, are something else.
    """
    named = {place for place in positions if is_named_as_book_side(elements[place][0])}
    said = {place for place in positions if positions[place].side is not None} - named
    if named:
        numbers = {len(positions[place].numbers) for place in named}
        return named | {place for place in said if len(positions[place].numbers) in numbers}
    return said or {max(positions, key=lambda place: len(elements[place][1]))}


def _find_arrays_of_level_objects(elements: ElementsOfArrays) -> dict[ArrayPlace, tuple[str, str]]:
    """Returns arrays of objects that are named as sides, with the paths of price and quantity."""
    objects = {}
    for place, (source, found) in elements.items():
        if is_named_as_book_side(source) and found and isinstance(found[0], dict):
            price = next((name for name in found[0] if OF_PRICE.search(name)), None)
            quantity = next((name for name in found[0] if OF_QUANTITY.search(name)), None)
            if price is not None and quantity is not None:
                objects[place] = f".{price}", f".{quantity}"
    return objects


def find_level_positions(elements: Sequence[list[Any]]) -> LevelPositions:
    """Returns which positions of arrays, the elements of an array, have the side and which have numbers."""
    roles = LevelPositions()
    width = min((len(item) for item in elements), default=0)
    for place in range(width):
        values = [item[place] for item in elements]
        if all(isinstance(value, str) and value.lower() in SIDES for value in values):
            roles.side = place if roles.side is None else roles.side
        elif all(_is_number(value) for value in values):
            roles.numbers.append(place)
    return roles


def _is_number(value: Any) -> bool:
    return (isinstance(value, str) and _NUMBER.fullmatch(value) is not None) or (
        not isinstance(value, bool | str) and value is not None
    )


def _map_columns_to_level_paths(
    array_name: str, positions: LevelPositions, columns: Iterable[str], side_words: set[str]
) -> PathsOfColumns:
    """Returns the path, or constant side, of each column in the levels of the array `array_name`."""
    fields: PathsOfColumns = {}
    numbers = iter(positions.numbers)
    for column in columns:
        if column == "side":
            fields[column] = (
                f"={choose_word_for_book_side(array_name, side_words)}"
                if positions.side is None
                else f".[{positions.side}]"
            )
        elif (place := next(numbers, None)) is not None:
            fields[column] = f".[{place}]"
    return fields
