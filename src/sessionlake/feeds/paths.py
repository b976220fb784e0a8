"""Paths: expressions of the configuration that say where a value is in a message. Finds the values at them.

`feeds.path_parsing` parses these forms:

- `params.data.bids[*]`: a field of a field; each element of an array
- `[-1]`, `[1:-2]`: an element from the end; a part of an array
- `.price`, `.`, `^.symbol`: a field of the element; the element itself; a field of the element's parent
- `"x.y".z`: a field of a field whose name has a dot
- `kafka.key`, `kafka.headers.source`: the key and a header of the Kafka message
- `=ask`: a constant
- `a | b`: the first that is present
- `entries(state)`: the fields of an object as elements with `.key` and `.value`
- `parts(kafka.key, "/")[2]`: a part of a text between separators

An *element* is the JSON value from which a row is read, or a part of a split message. A value is *missing* if a field
or array element does not exist, or if a step meets a value without fields or elements. `null` is a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple


class MissingValueType(Enum):
    """The type of `MISSING`, which stands for a value that is not in the message."""

    MISSING = 0

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = MissingValueType.MISSING


class PathStart(Enum):
    """The value at which a path begins: the message, an element, an element's parent, or a field of the record."""

    MESSAGE = "message"
    ELEMENT = "element"
    PARENT = "parent"
    TOPIC = "topic"
    PARTITION = "partition"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    KEY = "key"
    HEADERS = "headers"


class FieldStep(NamedTuple):
    """The step from an object to its field of this name."""

    name: str


class ArrayIndexStep(NamedTuple):
    """The step from an array to one of its elements. 0 is the first, -1 the last."""

    number: int


class ArraySliceStep(NamedTuple):
    """The step from an array to a part of it, as Python's `array[first:end]`. None leaves this side open."""

    first: int | None
    end: int | None


class EachElementStep(NamedTuple):
    """The step `[*]` from an array to every element of it. Allowed only in paths that give several elements."""


PathStep = FieldStep | ArrayIndexStep | ArraySliceStep | EachElementStep


@dataclass(frozen=True)
class PathAlternative:
    """A way from a start to a value in the message.

    Attributes:
        start: The value at which the way begins.
        steps: The steps, in order.
        separator: With `parts(…)`: the text that separates the parts of the value; None otherwise.
        part: With `parts(…)`: index of the part, from 0; negative counts from the end.
        entries: True with `entries(…)`: the value is an object, and each of its fields becomes an element.
    """

    start: PathStart
    steps: tuple[PathStep, ...]
    separator: str | None = None
    part: int = 0
    entries: bool = False


@dataclass(frozen=True)
class PathConstant:
    """A constant of the configuration, as text. The column to which it is assigned determines its type."""

    text: str


@dataclass(frozen=True)
class FeedPath:
    """A parsed path. It gives the value of its first alternative that is not missing.

    Attributes:
        text: The path as the configuration writes it, for errors.
        alternatives: The parts that are separated by ` | `; at least one.
    """

    text: str
    alternatives: tuple[PathAlternative | PathConstant, ...]

    @property
    def gives_several_elements(self) -> bool:
        """True if the path can give several elements: it has `[*]` or `entries(…)`."""
        return any(
            isinstance(one, PathAlternative)
            and (one.entries or any(isinstance(step, EachElementStep) for step in one.steps))
            for one in self.alternatives
        )

    @property
    def starts_at_element(self) -> bool:
        """True if the path begins at an element or its parent, so it makes sense only for rows or parts."""
        return any(
            isinstance(one, PathAlternative) and one.start in {PathStart.ELEMENT, PathStart.PARENT}
            for one in self.alternatives
        )


class MessageElement(NamedTuple):
    """An element of a message, from which a row or a part is read.

    Attributes:
        value: The element.
        parent: The object that has the array in which the element is. In nested arrays, the nearest object.
    """

    value: Any
    parent: Any


@dataclass(frozen=True)
class ObjectEntryElement:
    """An element that `entries(…)` makes of an object's field: `.key` is its name, `.value` its value."""

    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class PathContext:
    """The message in which paths are looked up, and the element that is being read.

    Attributes:
        value: Decoded Kafka value; `MISSING` for a tombstone.
        topic: Topic of the message.
        partition: Number of the partition.
        offset: Kafka offset.
        timestamp: Kafka timestamp in ms since 1970; -1 if the producer set none.
        key: Kafka key as text, or decoded if the feed has a `key_format`; None if the message has none.
        headers: Header values as text, by name. If a name occurs several times, the last value.
        element: The element that is being read; `MISSING` if none is.
        parent: The element's parent; `MISSING` if no element is being read.
    """

    value: Any
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Any
    headers: dict[str, str]
    element: Any = MISSING
    parent: Any = MISSING


def find_value_at_path(path: FeedPath, context: PathContext) -> Any:
    """Returns the value at a path, a `PathConstant` for a constant, or `MISSING` if the message has no such value."""
    for one in path.alternatives:
        if isinstance(one, PathConstant):
            return one
        value = _choose_part_of_text(one, _get_value_after_steps(_get_start_value(one.start, context), one.steps))
        if value is not MISSING:
            return value
    return MISSING


def find_elements_at_path(path: FeedPath, context: PathContext) -> list[MessageElement] | None:
    """Returns the elements at a path, in order.

    Returns:
        An empty list if the value is missing or null. None if it is not an array, or with `entries(…)` not an object.
    """
    for one in path.alternatives:
        if isinstance(one, PathConstant):
            continue
        start = _get_start_value(one.start, context)
        if one.entries:
            return _list_object_entries(
                _get_value_after_steps(start, one.steps), _get_value_after_steps(start, one.steps[:-1])
            )
        found = _find_elements_after_steps(start, one.steps, start)
        if found is None or found:
            return found
    return []


def _get_start_value(start: PathStart, context: PathContext) -> Any:
    match start:
        case PathStart.MESSAGE:
            return context.value
        case PathStart.ELEMENT:
            return context.element
        case PathStart.PARENT:
            return context.parent
        case PathStart.KEY:
            return MISSING if context.key is None else context.key
        case _:
            return getattr(context, start.value)


def _get_value_after_steps(value: Any, steps: tuple[PathStep, ...]) -> Any:
    for step in steps:
        value = _get_value_after_step(value, step)
        if value is MISSING:
            return MISSING
    return value


def _get_value_after_step(value: Any, step: PathStep) -> Any:
    match step:
        case FieldStep(name):
            if isinstance(value, dict):
                return value.get(name, MISSING)
            return (
                getattr(value, name, MISSING)
                if isinstance(value, ObjectEntryElement) and name in {"key", "value"}
                else MISSING
            )
        case ArrayIndexStep(number):
            has = isinstance(value, list) and -len(value) <= number < len(value)
            return value[number] if has else MISSING
        case ArraySliceStep(first, end):
            return value[first:end] if isinstance(value, list) else MISSING
        case _:
            return MISSING


def _choose_part_of_text(alternative: PathAlternative, value: Any) -> Any:
    """Returns the chosen part of a text, `MISSING` if it has no such part. Without a separator, returns the value."""
    if alternative.separator is None or value is MISSING:
        return value
    parts = value.split(alternative.separator) if isinstance(value, str) else []
    return parts[alternative.part] if -len(parts) <= alternative.part < len(parts) else MISSING


def _find_elements_after_steps(value: Any, steps: tuple[PathStep, ...], parent: Any) -> list[MessageElement] | None:
    """Returns the elements at the end of the steps; None if `[*]` meets a value that is not an array, null or missing.

    Args:
        value: The value from which the steps start.
        steps: The remaining steps.
        parent: The object in which the value is.
    """
    for number, step in enumerate(steps):
        if not isinstance(step, EachElementStep):
            parent = value if isinstance(step, FieldStep) else parent
            value = _get_value_after_step(value, step)
        elif isinstance(value, list):
            found: list[MessageElement] = []
            for item in value:
                below = _find_elements_after_steps(item, steps[number + 1 :], parent)
                if below is None:
                    return None
                found += below
            return found
        elif value is not None:
            return None
        if value is MISSING or value is None:
            return []
    return [MessageElement(value, parent)]


def _list_object_entries(value: Any, parent: Any) -> list[MessageElement] | None:
    if value is MISSING or value is None:
        return []
    return (
        [MessageElement(ObjectEntryElement(*item), parent) for item in value.items()]
        if isinstance(value, dict)
        else None
    )
