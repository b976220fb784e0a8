"""The arrays of a sample that may have rows: their elements, and whether they are sides of an order book."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sessionlake.feeds.inference.kinds import MessageKindGroup
from sessionlake.feeds.inference.sample import SampledArray
from sessionlake.feeds.inference.types import InferredColumnType
from sessionlake.feeds.inference.words import SIDES

MOST_ELEMENTS = 2_000
"""Number of elements of an array, over all messages, whose values decide about types."""
_AT_INDEX = re.compile(r"^\[\d+\]\.")
PathsOfColumns = dict[str, str]
"""Path of each column, by its name."""
ArrayPlace = tuple[int, str]
"""Number of a kind, and the path of an array in its messages."""
ElementsOfArrays = dict[ArrayPlace, tuple[SampledArray, list[Any]]]
"""The elements of each array in the sample, with one source as an example."""


@dataclass
class ProposedTable:
    """The table that inference proposes for a sample: its columns and key, and where its rows are in messages.

    Attributes:
        kinds: Kinds of messages that have rows.
        columns: The columns of the rows, by name.
        key: Names of the columns that identify a row; empty if none is known.
        rows: For each kind, in the order of `kinds`: what the setting `rows` of its rule lists, one mapping for each
            place that has rows.
    """

    kinds: list[MessageKindGroup]
    columns: dict[str, InferredColumnType]
    key: list[str]
    rows: list[list[dict[str, Any]]] = field(default_factory=list)


def collect_elements_of_arrays(kinds: Iterable[MessageKindGroup]) -> ElementsOfArrays:
    """Returns the elements of all arrays in the sample that may have rows, at most 2,000 of each.

    Returns:
        By kind (its index in `kinds`) and path: one of the arrays as an example, and the elements of all of them.
    """
    found: ElementsOfArrays = {}
    for number, group in enumerate(kinds):
        for one in group.messages:
            for source in one.sources:
                elements = found.setdefault((number, source.path), (source, []))[1]
                elements += source.elements[: max(0, MOST_ELEMENTS - len(elements))]
    return found


def is_named_as_book_side(array: SampledArray) -> bool:
    """Returns True for an array that is named as a side of an order book, such as `bids`."""
    return array.name.lower() in SIDES


def find_empty_arrays_of_book_sides(elements: ElementsOfArrays, chosen: set[ArrayPlace]) -> set[ArrayPlace]:
    """Returns the places of arrays without elements that are named as sides of an order book, such as `bids`.

    Only in kinds of messages that have chosen arrays, or no other arrays with elements.
    """
    others = {number for (number, path), (_, found) in elements.items() if found and (number, path) not in chosen}
    kinds = {number for number, _ in chosen}
    return {
        place
        for place, (source, found) in elements.items()
        if not found and is_named_as_book_side(source) and (place[0] in kinds or place[0] not in others)
    }


def choose_word_for_book_side(array_name: str, used_words: set[str]) -> str:
    """Returns the word for the side that an array is named as: one of `used_words` if one fits, or `bid` or `ask`."""
    side = SIDES[array_name.lower()]
    return next((word for word in sorted(used_words) if SIDES[word.lower()] == side), side)


def find_rule_path_of_each_array(group: MessageKindGroup, array_paths: set[str]) -> dict[str, str]:
    """Returns the path that a rule for a kind needs for each chosen array, by the array's path in the sample.

    If messages are arrays, and the same field is in different elements of them, its path goes over all these elements.
    """
    found: dict[str, list[SampledArray]] = defaultdict(list)
    for one in group.messages:
        for source in one.sources:
            if source.path in array_paths:
                found[source.path].append(source)
    places = defaultdict(set)
    for path, sources in found.items():
        if sources[0].index is not None:
            places[sources[0].name].add(path)
    if all(len(paths) < 2 for paths in places.values()):  # noqa: PLR2004 - two places of one field
        return {path: path for path in found}
    indices = [source.index for sources in found.values() for source in sources if source.index is not None]
    first, end = min(index for index, _ in indices), max(index - length for index, length in indices) + 1
    part = f"[{first}:{end}]" if end < 0 else f"[{first}:]"
    return {min(paths): f"{part}[*].{_AT_INDEX.sub('', min(paths))}" for paths in places.values()}
