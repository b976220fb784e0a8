"""Paths: where in a message a value is. This module parses them and finds values one at a time.

- `params.data.bids[*]`: a field of a field; each element of an array
- `[-1]`, `[1:-2]`: an element from the end; a part of an array
- `.price`, `.`, `^.symbol`: a field of the element; the element itself; a field of the element's parent
- `"x.y".z`: a field whose name has a dot
- `kafka.key`, `kafka.headers.source`: of the Kafka message
- `=ask`: a constant
- `a | b`: the first that is present
- `entries(state)`: the fields of an object as elements with `.key` and `.value`
- `parts(kafka.key, "/")[2]`: a part of a text

A value is *missing* where a field or an element is not there, or where a step meets something that has no fields or no
elements. `null` is a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple


class PathError(ValueError):
    """A path that cannot be read. The text says at which character, and what is allowed there."""


class Missing(Enum):
    """The type of `MISSING`: a value that is not in the message."""

    MISSING = 0

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING


class Start(Enum):
    """Where a path begins."""

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
    """The field of an object."""

    name: str


class Index(NamedTuple):
    """The element of an array; negative numbers count from the end."""

    number: int


class Slice(NamedTuple):
    """A part of an array, as Python slices."""

    first: int | None
    end: int | None


class Each(NamedTuple):
    """Every element of an array. Only where a path gives elements."""


Step = Field | Index | Slice | Each


@dataclass(frozen=True)
class Access:
    """Steps from a start.

    Attributes:
        separator: If not None, the value is a text and `part` numbers one of its parts.
        entries: True if the value is an object whose fields are the elements.
    """

    start: Start
    steps: tuple[Step, ...]
    separator: str | None = None
    part: int = 0
    entries: bool = False


@dataclass(frozen=True)
class Constant:
    """A text of the configuration; the column that takes it gives it a type."""

    text: str


@dataclass(frozen=True)
class Path:
    """Alternatives, of which the first that is present counts.

    Attributes:
        text: As written, for errors.
    """

    text: str
    alternatives: tuple[Access | Constant, ...]

    @property
    def gives_elements(self) -> bool:
        """True if the path may give several elements: it has `[*]`, or is `entries(…)`."""
        return any(
            isinstance(one, Access) and (one.entries or any(isinstance(step, Each) for step in one.steps))
            for one in self.alternatives
        )

    @property
    def needs_element(self) -> bool:
        """True if the path begins at an element or its parent."""
        return any(isinstance(one, Access) and one.start in {Start.ELEMENT, Start.PARENT} for one in self.alternatives)


class Element(NamedTuple):
    """An element that `each` gives.

    Attributes:
        value: The element.
        parent: The object or array in which the array of the element is.
    """

    value: Any
    parent: Any


@dataclass(frozen=True)
class Entry:
    """A field of an object, as an element with `.key` and `.value`."""

    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class Place:
    """What paths are resolved against: a message, and the element in it that is being read.

    Attributes:
        value: The message's value, decoded; `MISSING` for a tombstone.
        key: The Kafka key: a text, or a document where the feed has a `key_format`; None if there is none.
        timestamp: Milliseconds.
        headers: The last value of each name, as text.
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
    """Parses a path.

    Raises:
        PathError: naming the character and what is allowed there.
    """
    return Path(text, tuple(_alternative(part) for part in _alternatives(text)))


def _alternatives(text: str) -> list[str]:
    """The parts between bars. A constant continues to the end of the text or to a bar between spaces."""
    parts = re.split(r"\s+\|\s+", text.strip())
    if not all(parts):
        raise PathError(f"{text!r}: an alternative is empty")
    return parts


def _alternative(text: str) -> Access | Constant:
    if text.startswith("="):
        return Constant(text[1:])
    found = re.fullmatch(r"(entries|parts)\((.*)\)(\[(-?\d+)\])?(.*)", text, re.DOTALL)
    if found is None:
        return _access(text)
    function, inside, bracket, number, rest = found.groups()
    if function == "entries":
        if bracket or rest not in {"", "[*]"}:
            raise PathError(f"{text!r}: nothing follows entries(…)")
        one = _access(inside.strip())
        return Access(one.start, one.steps, entries=True)
    split = re.fullmatch(r'(.*),\s*"((?:[^"\\]|\\.)+)"\s*', inside, re.DOTALL)
    if split is None or not bracket or rest:
        raise PathError(f'{text!r}: write parts(path, "separator")[number]')
    one = _access(split[1].strip())
    return Access(one.start, one.steps, _unquoted(f'"{split[2]}"'), int(number))


def _access(text: str) -> Access:
    start, place = _start(text)
    steps: list[Step] = []
    if start is Start.HEADERS:
        name = _name_at(text, place)
        return Access(start, (Field(_unquoted(name)), *_steps(text, place + len(name))))
    begins_with_name = start in {Start.MESSAGE, Start.ELEMENT} and place < len(text) and text[place] != "["
    if begins_with_name:
        name = _name_at(text, place)
        steps, place = [Field(_unquoted(name))], place + len(name)
    return Access(start, (*steps, *_steps(text, place)))


def _start(text: str) -> tuple[Start, int]:
    """Where a path begins, and the place of the character after that."""
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


def _steps(text: str, place: int) -> Iterator[Step]:
    while place < len(text):
        if text[place] == ".":
            name = _name_at(text, place + 1)
            yield Field(_unquoted(name))
            place += 1 + len(name)
        elif text[place] == "[":
            end = text.find("]", place)
            if end < 0:
                raise PathError(f"{text!r}: the bracket at character {place + 1} is not closed")
            yield _bracket(text, text[place + 1 : end].strip(), place)
            place = end + 1
        else:
            raise PathError(f"{text!r}: character {place + 1} is {text[place]!r}, where . or [ is expected")


def _bracket(text: str, inside: str, place: int) -> Step:
    if inside == "*":
        return Each()
    if _NUMBER.fullmatch(inside):
        return Index(int(inside))
    if found := re.fullmatch(r"(-?\d+)?\s*:\s*(-?\d+)?", inside):
        return Slice(*(None if part is None else int(part) for part in found.groups()))
    raise PathError(f"{text!r}: [{inside}] at character {place + 1} is none of [*], [2], [-1] and [1:-2]")


def _name_at(text: str, place: int) -> str:
    found = _NAME.match(text, place)
    if found is None:
        raise PathError(
            f'{text!r}: a name is missing at character {place + 1}; names with other signs are quoted, "x.y"'
        )
    return found[0]


def _unquoted(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name[1:-1]) if name.startswith('"') else name


def find(path: Path, place: Place) -> Any:
    """The value at a path; `MISSING` if it is not in the message. A constant is a `Constant`."""
    for one in path.alternatives:
        if isinstance(one, Constant):
            return one
        value = _part(one, _follow(_begin(one.start, place), one.steps))
        if value is not MISSING:
            return value
    return MISSING


def elements(path: Path, place: Place) -> list[Element] | None:
    """The elements that a path gives, in order; none where it is missing or null.

    Returns:
        None if the path leads to something that has no elements.
    """
    for one in path.alternatives:
        if isinstance(one, Constant):
            continue
        start = _begin(one.start, place)
        if one.entries:
            return _entries(_follow(start, one.steps), _follow(start, one.steps[:-1]))
        found = _each(start, one.steps, start)
        if found is None or found:
            return found
    return []


def _begin(start: Start, place: Place) -> Any:
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


def _follow(value: Any, steps: tuple[Step, ...]) -> Any:
    for step in steps:
        value = _step(value, step)
        if value is MISSING:
            return MISSING
    return value


def _step(value: Any, step: Step) -> Any:
    match step:
        case Field(name):
            if isinstance(value, dict):
                return value.get(name, MISSING)
            return getattr(value, name, MISSING) if isinstance(value, Entry) and name in {"key", "value"} else MISSING
        case Index(number):
            has = isinstance(value, list) and -len(value) <= number < len(value)
            return value[number] if has else MISSING
        case Slice(first, end):
            return value[first:end] if isinstance(value, list) else MISSING
        case _:
            return MISSING


def _part(one: Access, value: Any) -> Any:
    """The part of a text that an access names; without a separator, the value."""
    if one.separator is None or value is MISSING:
        return value
    parts = value.split(one.separator) if isinstance(value, str) else []
    return parts[one.part] if -len(parts) <= one.part < len(parts) else MISSING


def _each(value: Any, steps: tuple[Step, ...], parent: Any) -> list[Element] | None:
    """The elements at the end of the steps; None where `[*]` meets something that is no array."""
    for number, step in enumerate(steps):
        if not isinstance(step, Each):
            parent = value if isinstance(step, Field) else parent
            value = _step(value, step)
        elif isinstance(value, list):
            found: list[Element] = []
            for item in value:
                below = _each(item, steps[number + 1 :], parent)
                if below is None:
                    return None
                found += below
            return found
        elif value is not None:
            return None
        if value is MISSING or value is None:
            return []
    return [Element(value, parent)]


def _entries(value: Any, parent: Any) -> list[Element] | None:
    if value is MISSING or value is None:
        return []
    return [Element(Entry(*item), parent) for item in value.items()] if isinstance(value, dict) else None
