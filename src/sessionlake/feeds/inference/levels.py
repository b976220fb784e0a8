"""Finds the rows of messages whose rows are arrays, such as the levels of an order book."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sessionlake.feeds.inference.arrays import (
    Elements,
    Fields,
    Place,
    ProposedTable,
    find_empty_sides,
    has_side,
    paths_of,
    side_word,
)
from sessionlake.feeds.inference.kinds import KindGroup
from sessionlake.feeds.inference.types import Inferred, infer_type
from sessionlake.feeds.inference.words import OF_PRICE, OF_QUANTITY, SIDES

_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE]-?\d+)?")


@dataclass
class Roles:
    """Positions in an element that is an array.

    Attributes:
        side: Position of a text that says the side of a book; None if there is none.
        numbers: Positions of numbers.
    """

    side: int | None = None
    numbers: list[int] = field(default_factory=list)


def build_levels_table(kinds: Sequence[KindGroup], elements: Elements, roles: dict[Place, Roles]) -> ProposedTable:
    """Returns the table whose rows are arrays.

    Args:
        kinds: Kinds of messages.
        elements: The arrays of the sample.
        roles: What the positions of their elements mean, for each array of arrays with numbers.
    """
    chosen = _choose_levels(elements, roles)
    sided = any(has_side(elements[place][0]) or roles[place].side is not None for place in chosen)
    example = roles[max(chosen, key=lambda place: len(elements[place][1]))]
    objects = _find_level_objects(elements) if sided else {}
    empty = find_empty_sides(elements, chosen | objects.keys()) if sided else set()
    roles |= dict.fromkeys(empty, example)
    words = {
        str(item[roles[place].side]) for place in chosen if roles[place].side is not None for item in elements[place][1]
    }
    names = ("price", "qty") if sided else tuple(f"c{number}" for number in range(len(example.numbers)))
    columns = {"side": Inferred("string")} if sided else {}
    for index, name in enumerate(names[: max(len(roles[place].numbers) for place in chosen)]):
        values = [item[roles[place].numbers[index]] for place in chosen for item in elements[place][1]
                  if index < len(roles[place].numbers) and len(item) > roles[place].numbers[index]]  # fmt: skip
        columns[name] = infer_type("price" if sided else name, values, is_key=True, is_level=True)
    table = ProposedTable([], columns, ["side", "price"] if sided else ["c0"])
    for number, group in enumerate(kinds):
        paths = paths_of(group, {path for kind, path in chosen | empty | objects.keys() if kind == number})
        parts = []
        for raw, path in paths.items():
            source, names_of_object = elements[number, raw][0], objects.get((number, raw))
            if names_of_object is not None:
                row = dict(zip(columns, (f"={side_word(source.name, words)}", *names_of_object), strict=False))
            else:
                row = _map_columns(source.name, roles[number, raw], columns, words)
            parts.append({"each": path, "row": row})
        if parts:
            table.kinds.append(group)
            table.rows.append(parts)
    return table


def _choose_levels(elements: Elements, roles: dict[Place, Roles]) -> set[Place]:
    """Returns the arrays that are levels of the same book: those named as sides, and others that say the side.

    Arrays that say the side and have more numbers than the levels, such as trades with a time, are something else.
    """
    named = {place for place in roles if has_side(elements[place][0])}
    said = {place for place in roles if roles[place].side is not None} - named
    if named:
        numbers = {len(roles[place].numbers) for place in named}
        return named | {place for place in said if len(roles[place].numbers) in numbers}
    return said or {max(roles, key=lambda place: len(elements[place][1]))}


def _find_level_objects(elements: Elements) -> dict[Place, tuple[str, str]]:
    """Returns arrays of objects that are named as sides, with the paths of price and quantity."""
    objects = {}
    for place, (source, found) in elements.items():
        if has_side(source) and found and isinstance(found[0], dict):
            price = next((name for name in found[0] if OF_PRICE.search(name)), None)
            quantity = next((name for name in found[0] if OF_QUANTITY.search(name)), None)
            if price is not None and quantity is not None:
                objects[place] = f".{price}", f".{quantity}"
    return objects


def find_roles(elements: Sequence[list[Any]]) -> Roles:
    """Returns which positions of arrays, the elements of an array, have the side and which have numbers."""
    roles = Roles()
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


def _map_columns(name: str, roles: Roles, columns: Iterable[str], words: set[str]) -> Fields:
    """Returns the path, or constant side, of each column in the levels of the array `name`."""
    fields: Fields = {}
    numbers = iter(roles.numbers)
    for column in columns:
        if column == "side":
            fields[column] = f"={side_word(name, words)}" if roles.side is None else f".[{roles.side}]"
        elif (place := next(numbers, None)) is not None:
            fields[column] = f".[{place}]"
    return fields
