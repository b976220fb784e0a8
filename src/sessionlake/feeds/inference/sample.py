"""A sample of messages, taken apart: single values by path, and arrays that may have rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sessionlake.feeds.reader import KafkaRecord, load_json
from sessionlake.protocol.jsontext import InvalidJsonError

_DEPTH = 4
_MOST_VALUES = 200
_MOST_BYTES = 2 * 1024 * 1024
"""Longest value that is part of a sample."""
_PLAIN_NAME = re.compile(r"[A-Za-z_$@#][\w$@#-]*")
_ODD_NAME = re.compile(r'[|"\\\x00-\x1f\x7f]')
_LONGEST_NAME = 100
_NAMED = 3
"""Number of elements at both ends of an array that have a path, if the message itself is an array."""


@dataclass
class SampledArray:
    """An array of a message whose elements may be rows.

    Attributes:
        path: Path of the elements, which ends with `[*]`.
        name: Name of the field that has the array; "" if there is none.
        elements: The elements: all are objects, or all are arrays of single values. May be empty.
        index: With a message that is an array: the index of the element in which the array is, and the message's
            length; None otherwise.
    """

    path: str
    name: str
    elements: list[Any]
    index: tuple[int, int] | None = None


@dataclass
class SampledMessage:
    """A message of the sample.

    Attributes:
        record: The message.
        value: Its JSON value. Numbers with a point are decimals.
        scalars: Its single values outside of arrays, by path.
        sources: Its arrays that may have rows.
    """

    record: KafkaRecord
    value: Any
    scalars: dict[str, Any] = field(default_factory=dict)
    sources: list[SampledArray] = field(default_factory=list)


@dataclass
class SampledMessages:
    """Messages from which a feed is inferred.

    Attributes:
        messages: The messages that are objects or arrays.
        others: Messages that are neither, such as text, numbers, or text that is not JSON.
        tombstones: Messages without a value.
    """

    messages: list[SampledMessage]
    others: list[KafkaRecord]
    tombstones: list[KafkaRecord]


def parse_sample_of_records(records: Iterable[KafkaRecord]) -> SampledMessages:
    """Parses messages, and finds the single values and arrays in each."""
    messages, others, tombstones = [], [], []
    for record in records:
        if record.value is None:
            tombstones.append(record)
            continue
        try:
            value = load_json(record.value) if len(record.value) <= _MOST_BYTES else None
        except InvalidJsonError:
            value = None
        if isinstance(value, dict | list):
            messages.append(SampledMessage(record, value))
        else:
            others.append(record)
    wrapping_arrays = _find_paths_of_wrapping_arrays(messages)
    for one in messages:
        _add_values_and_arrays_below(one, one.value, "", "", wrapping_arrays, 0)
        if isinstance(one.value, list):
            one.scalars |= {
                f"[{-n}]": one.value[-n] for n in (1, 2) if len(one.value) > n and _is_scalar(one.value[-n])
            }
    return SampledMessages(messages, others, tombstones)


def parse_message_part(record: KafkaRecord, value: Any, path_prefix: str) -> SampledMessage:
    """Finds the single values and arrays in a part of a message. All their paths begin with `path_prefix`."""
    one = SampledMessage(record, value)
    _add_values_and_arrays_below(one, value, "", "", set(), 0)
    one.scalars = {f"{path_prefix}{path}": item for path, item in one.scalars.items()}
    for source in one.sources:
        source.path = f"{path_prefix}{source.path}"
    return one


def build_path_of_field(prefix: str, field_name: str) -> str | None:
    """Returns the path of a field below a path; None if its name is too unusual for a path."""
    if not field_name or len(field_name) > _LONGEST_NAME or _ODD_NAME.search(field_name):
        return None
    quoted = (
        field_name if _PLAIN_NAME.fullmatch(field_name) and field_name not in {"kafka", "body"} else f'"{field_name}"'
    )
    return f"{prefix}.{quoted}" if prefix else quoted


def get_field_name(path: str) -> str:
    """Returns the name of the field at the end of a path; "" if the path ends with an index."""
    last = path.rpartition(".")[2] if '"' not in path else re.split(r'\.(?=(?:[^"]*"[^"]*")*[^"]*$)', path)[-1]
    return "" if last.endswith("]") else last.strip('"')


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, dict | list)


def _find_paths_of_wrapping_arrays(messages: list[SampledMessage]) -> set[str]:
    """Returns paths of arrays of objects with arrays of rows, if there is always one such object: `data[0].bids`."""
    longest: dict[str, int] = {}
    for one in messages:
        for path, items in _find_outer_arrays(one.value, "", 0):
            if has_element_with_rows(items):
                longest[path] = max(longest.get(path, 0), len(items))
    return {path for path, most in longest.items() if most == 1}


def has_element_with_rows(items: list[Any]) -> bool:
    """Returns True if an element of an array is an object with an array that may have rows."""
    return any(isinstance(item, dict) and any(_may_be_rows(inner) for inner in item.values()) for item in items)


def _find_outer_arrays(value: Any, path: str, depth: int) -> Iterator[tuple[str, list[Any]]]:
    """Yields the arrays in a value that are not in another array, with their paths."""
    if isinstance(value, list):
        yield path, value
    elif isinstance(value, dict) and depth < _DEPTH:
        for name, inner in value.items():
            below = build_path_of_field(path, name)
            if below is not None:
                yield from _find_outer_arrays(inner, below, depth + 1)


def _may_be_rows(value: Any) -> bool:
    """Returns True if all elements are objects, or all are arrays of several single values; also for an empty array."""
    if not isinstance(value, list):
        return False
    objects = all(isinstance(item, dict) for item in value)
    levels = all(isinstance(item, list) and len(item) > 1 and all(map(_is_scalar, item)) for item in value)
    return objects or levels


def _add_values_and_arrays_below(
    message: SampledMessage, value: Any, path: str, name: str, wrapping_arrays: set[str], depth: int
) -> None:
    """Adds the single values below a value, and the arrays that may have rows, to a message.

    Args:
        message: The message.
        value: The value.
        path: Path of the value.
        name: Name of the field that has the value; "" if there is none.
        wrapping_arrays: Paths of arrays whose only element is an object with arrays of rows.
        depth: Number of objects and arrays around the value.
    """
    if _is_scalar(value):
        if len(message.scalars) < _MOST_VALUES and path:
            message.scalars[path] = value
    elif depth > _DEPTH:
        return
    elif isinstance(value, dict):
        for inner, item in value.items():
            below = build_path_of_field(path, inner)
            if below is not None:
                _add_values_and_arrays_below(message, item, below, inner, wrapping_arrays, depth + 1)
    elif path in wrapping_arrays and has_element_with_rows(value):
        _add_values_and_arrays_below(message, value[0], f"{path}[0]", name, wrapping_arrays, depth)
    elif _may_be_rows(value):
        message.sources.append(SampledArray(f"{path}[*]", name, value))
    elif not path:
        _add_values_of_message_array(message, value, wrapping_arrays)


def _add_values_of_message_array(message: SampledMessage, value: list[Any], wrapping_arrays: set[str]) -> None:
    """Adds the values and arrays in a message that is an array of different things, by their index."""
    for index, item in enumerate(value):
        if _is_scalar(item):
            if index < _NAMED:
                message.scalars[f"[{index}]"] = item
            continue
        before = len(message.sources)
        _add_values_and_arrays_below(message, item, f"[{index}]", "", wrapping_arrays, 1)
        for source in message.sources[before:]:
            source.index = index, len(value)
