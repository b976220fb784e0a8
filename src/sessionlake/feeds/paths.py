"""Paths: expressions of the configuration that say where a value is in a message. Parses them and finds values.

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

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple


class PathError(ValueError):
    """A path is not valid. The text names the character and what is allowed there."""


class Missing(Enum):
    """The type of `MISSING`, which stands for a value that is not in the message."""

    MISSING = 0

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING


class Start(Enum):
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


class Field(NamedTuple):
    """The step from an object to its field of this name."""

    name: str


class ArrayIndex(NamedTuple):
    """The step from an array to one of its elements. 0 is the first, -1 the last."""

    number: int


class Slice(NamedTuple):
    """The step from an array to a part of it, as Python's `array[first:end]`. None leaves this side open."""

    first: int | None
    end: int | None


class EachElement(NamedTuple):
    """The step `[*]` from an array to every element of it. Allowed only in paths that give several elements."""


Step = Field | ArrayIndex | Slice | EachElement


@dataclass(frozen=True)
class Access:
    """A way from a start to a value in the message.

    Attributes:
        start: The value at which the way begins.
        steps: The steps, in order.
        separator: With `parts(…)`: the text that separates the parts of the value; None otherwise.
        part: With `parts(…)`: index of the part, from 0; negative counts from the end.
        entries: True with `entries(…)`: the value is an object, and each of its fields becomes an element.
    """

    start: Start
    steps: tuple[Step, ...]
    separator: str | None = None
    part: int = 0
    entries: bool = False


@dataclass(frozen=True)
class Constant:
    """A constant of the configuration, as text. The column to which it is assigned determines its type."""

    text: str


@dataclass(frozen=True)
class Path:
    """A parsed path. It gives the value of its first alternative that is not missing.

    Attributes:
        text: The path as the configuration writes it, for errors.
        alternatives: The parts that are separated by ` | `; at least one.
    """

    text: str
    alternatives: tuple[Access | Constant, ...]

    @property
    def gives_elements(self) -> bool:
        """True if the path can give several elements: it has `[*]` or `entries(…)`."""
        return any(
            isinstance(one, Access) and (one.entries or any(isinstance(step, EachElement) for step in one.steps))
            for one in self.alternatives
        )

    @property
    def needs_element(self) -> bool:
        """True if the path begins at an element or its parent, so it makes sense only for rows or parts."""
        return any(isinstance(one, Access) and one.start in {Start.ELEMENT, Start.PARENT} for one in self.alternatives)


class Element(NamedTuple):
    """An element of a message, from which a row or a part is read.

    Attributes:
        value: The element.
        parent: The object that has the array in which the element is. In nested arrays, the nearest object.
    """

    value: Any
    parent: Any


@dataclass(frozen=True)
class Entry:
    """An element that `entries(…)` makes of an object's field: `.key` is its name, `.value` its value."""

    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class Place:
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


_KAFKA = {
    start.value: start
    for start in (Start.TOPIC, Start.PARTITION, Start.OFFSET, Start.TIMESTAMP, Start.KEY, Start.HEADERS)
}
_NAME = re.compile(r'[A-Za-z_$@#][\w$@#-]*|"(?:[^"\\]|\\.)*"')
_NUMBER = re.compile(r"-?\d+")


def parse_path(text: str) -> Path:
    """Parses a path of the configuration.

    Raises:
        PathError: The path is not valid. The text names the character and what is allowed there.
    """
    return Path(text, tuple(_parse_alternative(part) for part in _split_alternatives(text)))


def _split_alternatives(text: str) -> list[str]:
    """Splits a path at each `|` with spaces around it. Without spaces, a `|` belongs to a constant."""
    parts = re.split(r"\s+\|\s+", text.strip())
    if not all(parts):
        raise PathError(f"{text!r}: an alternative is empty")
    return parts


def _parse_alternative(text: str) -> Access | Constant:
    if text.startswith("="):
        return Constant(text[1:])
    found = re.fullmatch(r"(entries|parts)\((.*)\)(\[(-?\d+)\])?(.*)", text, re.DOTALL)
    if found is None:
        return _parse_access(text)
    function, inside, bracket, number, rest = found.groups()
    if function == "entries":
        if bracket or rest not in {"", "[*]"}:
            raise PathError(f"{text!r}: nothing follows entries(…)")
        one = _parse_access(inside.strip())
        return Access(one.start, one.steps, entries=True)
    split = re.fullmatch(r'(.*),\s*"((?:[^"\\]|\\.)+)"\s*', inside, re.DOTALL)
    if split is None or not bracket or rest:
        raise PathError(f'{text!r}: write parts(path, "separator")[number]')
    one = _parse_access(split[1].strip())
    return Access(one.start, one.steps, _unquote(f'"{split[2]}"'), int(number))


def _parse_access(text: str) -> Access:
    start, place = _parse_start(text)
    steps: list[Step] = []
    if start is Start.HEADERS:
        name = _read_name(text, place)
        return Access(start, (Field(_unquote(name)), *_parse_steps(text, place + len(name))))
    begins_with_name = start in {Start.MESSAGE, Start.ELEMENT} and place < len(text) and text[place] != "["
    if begins_with_name:
        name = _read_name(text, place)
        steps, place = [Field(_unquote(name))], place + len(name)
    return Access(start, (*steps, *_parse_steps(text, place)))


def _parse_start(text: str) -> tuple[Start, int]:
    """Returns the value at which a path begins, and the index of the first character after its name."""
    if text.startswith("^"):
        return Start.PARENT, 1
    if text.startswith("."):
        return Start.ELEMENT, 1
    found = re.match(r"kafka\.([a-z]+)(?=[.\[]|$)", text)
    if found is None:
        return Start.MESSAGE, 0
    if found[1] not in _KAFKA:
        raise PathError(f"{text!r}: kafka.{found[1]} is not one of kafka.{', kafka.'.join(_KAFKA)}")
    start = _KAFKA[found[1]]
    if start is Start.HEADERS and text[found.end() : found.end() + 1] != ".":
        raise PathError(f"{text!r}: name a header, as in kafka.headers.source")
    return start, found.end() + (start is Start.HEADERS)


def _parse_steps(text: str, index: int) -> Iterator[Step]:
    while index < len(text):
        if text[index] == ".":
            name = _read_name(text, index + 1)
            yield Field(_unquote(name))
            index += 1 + len(name)
        elif text[index] == "[":
            end = text.find("]", index)
            if end < 0:
                raise PathError(f"{text!r}: the bracket at character {index + 1} is not closed")
            yield _parse_bracket(text, text[index + 1 : end].strip(), index)
            index = end + 1
        else:
            raise PathError(f"{text!r}: character {index + 1} is {text[index]!r}, where . or [ is expected")


def _parse_bracket(text: str, inside: str, index: int) -> Step:
    if inside == "*":
        return EachElement()
    if _NUMBER.fullmatch(inside):
        return ArrayIndex(int(inside))
    if found := re.fullmatch(r"(-?\d+)?\s*:\s*(-?\d+)?", inside):
        return Slice(*(None if part is None else int(part) for part in found.groups()))
    raise PathError(f"{text!r}: [{inside}] at character {index + 1} is none of [*], [2], [-1] and [1:-2]")


def _read_name(text: str, index: int) -> str:
    found = _NAME.match(text, index)
    if found is None:
        raise PathError(
            f'{text!r}: a name is missing at character {index + 1}; names with other signs are quoted, "x.y"'
        )
    return found[0]


def _unquote(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name[1:-1]) if name.startswith('"') else name


def find(path: Path, place: Place) -> Any:
    """Returns the value at a path, a `Constant` for a constant, or `MISSING` if the message has no such value."""
    for one in path.alternatives:
        if isinstance(one, Constant):
            return one
        value = _choose_part(one, _follow_steps(_find_start_value(one.start, place), one.steps))
        if value is not MISSING:
            return value
    return MISSING


def find_elements(path: Path, place: Place) -> list[Element] | None:
    """Returns the elements at a path, in order.

    Returns:
        An empty list if the value is missing or null. None if it is not an array, or with `entries(…)` not an object.
    """
    for one in path.alternatives:
        if isinstance(one, Constant):
            continue
        start = _find_start_value(one.start, place)
        if one.entries:
            return _list_entries(_follow_steps(start, one.steps), _follow_steps(start, one.steps[:-1]))
        found = _find_elements(start, one.steps, start)
        if found is None or found:
            return found
    return []


def _find_start_value(start: Start, place: Place) -> Any:
    match start:
        case Start.MESSAGE:
            return place.value
        case Start.ELEMENT:
            return place.element
        case Start.PARENT:
            return place.parent
        case Start.KEY:
            return MISSING if place.key is None else place.key
        case _:
            return getattr(place, start.value)


def _follow_steps(value: Any, steps: tuple[Step, ...]) -> Any:
    for step in steps:
        value = _follow_step(value, step)
        if value is MISSING:
            return MISSING
    return value


def _follow_step(value: Any, step: Step) -> Any:
    match step:
        case Field(name):
            if isinstance(value, dict):
                return value.get(name, MISSING)
            return getattr(value, name, MISSING) if isinstance(value, Entry) and name in {"key", "value"} else MISSING
        case ArrayIndex(number):
            has = isinstance(value, list) and -len(value) <= number < len(value)
            return value[number] if has else MISSING
        case Slice(first, end):
            return value[first:end] if isinstance(value, list) else MISSING
        case _:
            return MISSING


def _choose_part(access: Access, value: Any) -> Any:
    """Returns the chosen part of a text, `MISSING` if it has no such part. Without a separator, returns the value."""
    if access.separator is None or value is MISSING:
        return value
    parts = value.split(access.separator) if isinstance(value, str) else []
    return parts[access.part] if -len(parts) <= access.part < len(parts) else MISSING


def _find_elements(value: Any, steps: tuple[Step, ...], parent: Any) -> list[Element] | None:
    """Returns the elements at the end of the steps; None if `[*]` meets a value that is not an array, null or missing.

    Args:
        value: The value from which the steps start.
        steps: The remaining steps.
        parent: The object in which the value is.
    """
    for number, step in enumerate(steps):
        if not isinstance(step, EachElement):
            parent = value if isinstance(step, Field) else parent
            value = _follow_step(value, step)
        elif isinstance(value, list):
            found: list[Element] = []
            for item in value:
                below = _find_elements(item, steps[number + 1 :], parent)
                if below is None:
                    return None
                found += below
            return found
        elif value is not None:
            return None
        if value is MISSING or value is None:
            return []
    return [Element(value, parent)]


def _list_entries(value: Any, parent: Any) -> list[Element] | None:
    if value is MISSING or value is None:
        return []
    return [Element(Entry(*item), parent) for item in value.items()] if isinstance(value, dict) else None
