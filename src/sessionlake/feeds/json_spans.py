"""Finds out which bytes of a JSON text are the parts of a split message, and overwrites some of them with spaces.

The text keeps its length, and all other bytes stay as they are. The text must be valid JSON: only then the result is.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import NamedTuple

from sessionlake.feeds.paths import (
    ArrayIndexStep,
    ArraySliceStep,
    EachElementStep,
    FeedPath,
    FieldStep,
    PathAlternative,
    PathStart,
    PathStep,
)

_SPACES = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}]+")
_OBJECT, _ARRAY, _NULL, _OTHER = "object", "array", "null", "other"


@dataclass(frozen=True)
class _JsonValueSpan:
    """A JSON value in the text.

    Attributes:
        kind: `object`, `array`, `null` or `other`.
        start, end: Offsets of its first byte, and of the first byte after it.
        members: The fields of an object, the elements of an array, in order.
        commas: Offset of the comma after each member but the last.
    """

    kind: str
    start: int
    end: int
    members: tuple[_JsonMemberSpan, ...] = ()
    commas: tuple[int, ...] = ()


class _JsonMemberSpan(NamedTuple):
    """A field of an object, or an element of an array.

    Attributes:
        name: Name of the field; None for an element.
        start: Offset in the text, in bytes, at which the field (its name) or the element begins.
        value: The value, with its own offsets.
    """

    name: str | None
    start: int
    value: _JsonValueSpan


_Group = tuple[int, ...]
"""Starts of the members that an element consists of. Only a field whose name occurs several times has several."""


@dataclass(frozen=True)
class JsonMessageParts:
    """The parts of a split message in its JSON text.

    Attributes:
        text: The JSON text.
        parts: For each part, in order: the members around it, from the outermost to the part itself. Each is the
            offset of its first byte, or several offsets if its name occurs again.
        _hidden: Offsets of fields on the way to the parts that have no effect, because their names occur again.
    """

    text: bytes
    parts: tuple[tuple[_Group, ...], ...]
    _root: _JsonValueSpan
    _hidden: frozenset[int]

    @classmethod
    def find_message_parts(cls, json_text: bytes, split_path: FeedPath) -> JsonMessageParts | None:
        """Returns the parts at a path, as `paths.find_elements_at_path` does; None if it does not begin at the message.

        Args:
            json_text: Valid JSON in UTF-8.
            split_path: Path of the parts.
        """
        root, hidden = _parse_value_span(json_text, _skip_whitespace(json_text, 0)), set[int]()
        for one in split_path.alternatives:
            if not isinstance(one, PathAlternative) or one.start is not PathStart.MESSAGE:
                return None
            parts = _find_part_spans(root, one.steps, (), hidden, of_fields=one.entries)
            if parts:
                return cls(json_text, tuple(parts), root, frozenset(hidden))
        return cls(json_text, (), root, frozenset(hidden))

    def overwrite_parts_with_spaces(self, is_removed: Sequence[bool]) -> bytes:
        """Returns the text with spaces in place of some parts, and of the commas that they do not need any more.

        An array or object of which all parts are removed is removed with them, if it is itself an element of the path.

        Args:
            is_removed: For each part, whether it is removed.
        """
        count = Counter(group for part in self.parts for group in part)
        gone = Counter(group for part, own in zip(self.parts, is_removed, strict=True) if own for group in part)
        removed = {start for group in gone if gone[group] == count[group] for start in group}
        found = bytearray(self.text)
        for first, end in _list_byte_ranges_to_blank(self._root, removed | self._hidden):
            found[first:end] = b" " * (end - first)
        return bytes(found)


def _skip_whitespace(text: bytes, start: int) -> int:
    """Returns the offset of the first byte from `start` on that is no whitespace."""
    found = _SPACES.match(text, start)
    return start if found is None else found.end()


def _parse_value_span(json_text: bytes, start: int) -> _JsonValueSpan:
    """Returns the JSON value that begins at `start`."""
    if json_text[start] in b"{[":
        return _parse_object_or_array_span(json_text, start)
    found = (_STRING if json_text[start] == ord('"') else _SCALAR).match(json_text, start)
    if found is None:
        raise ValueError(f"no JSON at byte {start}")
    return _JsonValueSpan(_NULL if found[0] == b"null" else _OTHER, start, found.end())


def _parse_object_or_array_span(json_text: bytes, start: int) -> _JsonValueSpan:
    """Returns an object or array, whose bracket is at `start`."""
    kind = _OBJECT if json_text[start] == ord("{") else _ARRAY
    members, commas = list[_JsonMemberSpan](), list[int]()
    place = _skip_whitespace(json_text, start + 1)
    while json_text[place] not in b"}]":
        if json_text[place] == ord(","):
            commas.append(place)
            place = _skip_whitespace(json_text, place + 1)
        first, name = place, None
        if kind == _OBJECT:
            found = _STRING.match(json_text, place)
            if found is None:
                raise ValueError(f"no name at byte {place}")
            name = str(json.loads(found[0]))
            place = _skip_whitespace(json_text, _skip_whitespace(json_text, found.end()) + 1)
        value = _parse_value_span(json_text, place)
        members.append(_JsonMemberSpan(name, first, value))
        place = _skip_whitespace(json_text, value.end)
    return _JsonValueSpan(kind, start, place + 1, tuple(members), tuple(commas))


def _find_part_spans(
    value: _JsonValueSpan, steps: tuple[PathStep, ...], around: tuple[_Group, ...], hidden: set[int], *, of_fields: bool
) -> list[tuple[_Group, ...]]:
    """Returns the parts at the end of the steps, as `JsonMessageParts.parts` has them.

    Args:
        value: The value from which the steps start.
        steps: The remaining steps.
        around: The members around the value, each as the offsets at which it starts.
        hidden: Gets the offsets of fields on the way whose names occur again.
        of_fields: True if the parts are the fields of an object.
    """
    for number, step in enumerate(steps):
        if isinstance(step, EachElementStep):
            members = value.members if value.kind == _ARRAY else ()
            return [
                part
                for one in members
                for part in _find_part_spans(
                    one.value, steps[number + 1 :], (*around, (one.start,)), hidden, of_fields=of_fields
                )
            ]
        found = _find_step_target(value, step, hidden)
        if found is None or found.kind == _NULL:
            return []
        value = found
    if not of_fields:
        return [around]
    groups: dict[str | None, _Group] = {}
    for one in value.members if value.kind == _OBJECT else ():
        groups[one.name] = (*groups.get(one.name, ()), one.start)
    return [(*around, group) for group in groups.values()]


def _find_step_target(value: _JsonValueSpan, step: PathStep, hidden: set[int]) -> _JsonValueSpan | None:
    """Returns the value that a step leads to; None if there is none.

    `hidden` gets the starts of fields that have no effect, because their name occurs again.
    """
    match step:
        case FieldStep(name) if value.kind == _OBJECT:
            found = [one for one in value.members if one.name == name]
            hidden.update(one.start for one in found[:-1])
            return found[-1].value if found else None
        case ArrayIndexStep(number) if value.kind == _ARRAY and -len(value.members) <= number < len(value.members):
            return value.members[number].value
        case ArraySliceStep(first, end) if value.kind == _ARRAY:
            return replace(value, members=value.members[first:end])
        case _:
            return None


def _list_byte_ranges_to_blank(value: _JsonValueSpan, removed_starts: AbstractSet[int]) -> Iterator[tuple[int, int]]:
    """Yields the ranges of bytes to overwrite, so that a value loses the members that start at `removed_starts`."""
    has_kept = False
    for number, member in enumerate(value.members):
        is_kept = member.start not in removed_starts
        if number and not (is_kept and has_kept):
            yield value.commas[number - 1], value.commas[number - 1] + 1
        if is_kept:
            yield from _list_byte_ranges_to_blank(member.value, removed_starts)
        else:
            yield member.start, member.value.end
        has_kept |= is_kept
