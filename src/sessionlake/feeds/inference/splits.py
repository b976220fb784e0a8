"""Finds messages that hold several tables: one in each element of an array, or in each field of an object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sessionlake.feeds.inference.sample import (
    SampledMessage,
    SampledMessages,
    build_path_of_field,
    has_element_with_rows,
    parse_message_part,
)
from sessionlake.feeds.inference.words import OF_SNAPSHOT, OF_UPDATE, SIDES

_DEPTH = 3
_MOST_FORMS = 1
_ALIKE = 0.5
"""Least share of common fields of two parts that are tables of the same form."""
_REPEATED = 2
"""How often each name of a table must occur, on average. Names that do not repeat are something else."""
_MOST_NAMES = 5_000
_Parts = list[tuple[str | None, Any]]
"""The value of each part of a message; in an object with the name of its field, otherwise with None."""


@dataclass(frozen=True)
class MessageSplit:
    """Where messages have parts, each with rows of one table.

    Attributes:
        path: Path of the array or object; "" if the message itself is it.
        is_object: True for an object, whose fields are the parts, with the name of the table as the name of the field.
    """

    path: str
    is_object: bool

    @property
    def path_of_parts(self) -> str:
        """The path of the parts, as the setting `split` has it."""
        return f"entries({self.path})" if self.is_object else f"{self.path}[*]"

    @property
    def condition_of_messages_with_parts(self) -> tuple[str, str]:
        """A condition that all messages with parts meet."""
        return (self.path, "present") if self.path else ("body", "object" if self.is_object else "array")

    def find_parts_of_message(self, message: SampledMessage) -> _Parts | None:
        """Returns the name and value of each part; None if the message has no such parts."""
        found = dict(_find_arrays_and_objects(message.value, "", 0)).get(self.path)
        return _list_elements_or_fields(found) if isinstance(found, dict if self.is_object else list) else None


def find_possible_message_splits(sample: SampledMessages) -> list[MessageSplit]:
    """Returns where the messages of a sample have several tables, the place with the most parts first."""
    parts: dict[MessageSplit, list[_Parts]] = {}
    for one in sample.messages:
        for path, value in _find_arrays_and_objects(one.value, "", 0):
            split = MessageSplit(path, isinstance(value, dict))
            parts.setdefault(split, []).append(_list_elements_or_fields(value))
    found = [split for split, messages in parts.items() if _are_all_parts_tables(split, messages)]
    return sorted(found, key=lambda split: -sum(map(len, parts[split])))


def _find_arrays_and_objects(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yields path and value of each array or object whose elements or fields could each be read as a message.

    Looks at most `_DEPTH` levels into the message. `depth` is the level of `value`.
    """
    if isinstance(value, list):
        yield path, value
    elif isinstance(value, dict):
        yield path, value
        for name, inner in value.items():
            below = build_path_of_field(path, name)
            if below is not None and depth < _DEPTH:
                yield from _find_arrays_and_objects(inner, below, depth + 1)


def _list_elements_or_fields(value: Any) -> _Parts:
    """Returns the parts of an array or object, each with the name of its field; None for elements."""
    return [*value.items()] if isinstance(value, dict) else [(None, part) for part in value]


def _are_all_parts_tables(split: MessageSplit, messages: Sequence[_Parts]) -> bool:
    """Returns True if all parts are objects of the same form with rows in arrays, and a message has several of them."""
    values = [value for parts in messages for _, value in parts]
    if max(map(len, messages)) <= _MOST_FORMS or not all(isinstance(value, dict) for value in values):
        return False
    every = {name for value in values for name in value}
    if not all(has_element_with_rows([value]) and len(value.keys() & every) >= _ALIKE * len(every) for value in values):
        return False
    return not split.is_object or _are_table_names([str(name) for parts in messages for name, _ in parts])


def _are_table_names(names: Sequence[str]) -> bool:
    """Returns True if the names of an object's fields can be names of tables, and not words for parts of one table."""
    counts = Counter(names)
    words = any(name.lower() in SIDES or OF_SNAPSHOT.search(name) or OF_UPDATE.search(name) for name in counts)
    return not words and 1 < len(counts) <= _MOST_NAMES and counts.total() >= _REPEATED * len(counts)


def sample_parts_of_messages(
    sample: SampledMessages, split: MessageSplit
) -> tuple[SampledMessages, list[SampledMessage]] | None:
    """Returns the parts of all messages as a sample, and the messages without parts.

    Paths of values in a part begin with a dot. A part also has the single values of its message.

    Returns:
        None if a message has rows beside its parts, which reading the parts would lose.
    """
    taken, others = [], []
    for one in sample.messages:
        parts = split.find_parts_of_message(one)
        if parts is None:
            others.append(one)
            continue
        below = f"{split.path}." if split.path else ""
        if any(source.elements and source.path != f"{split.path}[*]" and not source.path.startswith(below)
               for source in one.sources):  # fmt: skip
            return None
        outside = {path: value for path, value in one.scalars.items() if not _is_path_below(path, split.path)}
        for name, value in parts:
            prefix, own = (".", {}) if name is None else (".value.", {".key": name})
            part = parse_message_part(one.record, value, prefix)
            part.scalars = outside | own | part.scalars
            taken.append(part)
    return SampledMessages(taken, sample.others, sample.tombstones), others


def _is_path_below(path: str, outer_path: str) -> bool:
    return not outer_path or path.startswith((f"{outer_path}.", f"{outer_path}["))
