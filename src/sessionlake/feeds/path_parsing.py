"""Parses the paths of the configuration, whose forms `feeds.paths` describes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sessionlake.feeds.paths import (
    ArrayIndexStep,
    ArraySliceStep,
    EachElementStep,
    FeedPath,
    FieldStep,
    PathAlternative,
    PathConstant,
    PathStart,
    PathStep,
)


class InvalidPathError(ValueError):
    """A path is not valid. The text names the character and what is allowed there."""


_KAFKA = {
    start.value: start
    for start in (
        PathStart.TOPIC,
        PathStart.PARTITION,
        PathStart.OFFSET,
        PathStart.TIMESTAMP,
        PathStart.KEY,
        PathStart.HEADERS,
    )
}


_NAME = re.compile(r'[A-Za-z_$@#][\w$@#-]*|"(?:[^"\\]|\\.)*"')


_NUMBER = re.compile(r"-?\d+")


def parse_feed_path(text: str) -> FeedPath:
    """Parses a path of the configuration.

    Raises:
        InvalidPathError: The path is not valid. The text names the character and what is allowed there.
    """
    return FeedPath(text, tuple(_parse_path_alternative(part) for part in _split_path_alternatives(text)))


def _split_path_alternatives(path_text: str) -> list[str]:
    """Splits a path at each `|` with spaces around it. Without spaces, a `|` belongs to a constant."""
    parts = re.split(r"\s+\|\s+", path_text.strip())
    if not all(parts):
        raise InvalidPathError(f"{path_text!r}: an alternative is empty")
    return parts


def _parse_path_alternative(text: str) -> PathAlternative | PathConstant:
    if text.startswith("="):
        return PathConstant(text[1:])
    found = re.fullmatch(r"(entries|parts)\((.*)\)(\[(-?\d+)\])?(.*)", text, re.DOTALL)
    if found is None:
        return _parse_start_and_steps(text)
    function, inside, bracket, number, rest = found.groups()
    if function == "entries":
        if bracket or rest not in {"", "[*]"}:
            raise InvalidPathError(f"{text!r}: nothing follows entries(…)")
        one = _parse_start_and_steps(inside.strip())
        return PathAlternative(one.start, one.steps, entries=True)
    split = re.fullmatch(r'(.*),\s*"((?:[^"\\]|\\.)+)"\s*', inside, re.DOTALL)
    if split is None or not bracket or rest:
        raise InvalidPathError(f'{text!r}: write parts(path, "separator")[number]')
    one = _parse_start_and_steps(split[1].strip())
    return PathAlternative(one.start, one.steps, _unquote_field_name(f'"{split[2]}"'), int(number))


def _parse_start_and_steps(text: str) -> PathAlternative:
    start, place = _parse_path_start(text)
    steps: list[PathStep] = []
    if start is PathStart.HEADERS:
        name = _read_field_name(text, place)
        return PathAlternative(
            start, (FieldStep(_unquote_field_name(name)), *_parse_path_steps(text, place + len(name)))
        )
    begins_with_name = start in {PathStart.MESSAGE, PathStart.ELEMENT} and place < len(text) and text[place] != "["
    if begins_with_name:
        name = _read_field_name(text, place)
        steps, place = [FieldStep(_unquote_field_name(name))], place + len(name)
    return PathAlternative(start, (*steps, *_parse_path_steps(text, place)))


def _parse_path_start(text: str) -> tuple[PathStart, int]:
    """Returns the value at which a path begins, and the index of the first character after its name."""
    if text.startswith("^"):
        return PathStart.PARENT, 1
    if text.startswith("."):
        return PathStart.ELEMENT, 1
    found = re.match(r"kafka\.([a-z]+)(?=[.\[]|$)", text)
    if found is None:
        return PathStart.MESSAGE, 0
    if found[1] not in _KAFKA:
        raise InvalidPathError(f"{text!r}: kafka.{found[1]} is not one of kafka.{', kafka.'.join(_KAFKA)}")
    start = _KAFKA[found[1]]
    if start is PathStart.HEADERS and text[found.end() : found.end() + 1] != ".":
        raise InvalidPathError(f"{text!r}: name a header, as in kafka.headers.source")
    return start, found.end() + (start is PathStart.HEADERS)


def _parse_path_steps(text: str, index: int) -> Iterator[PathStep]:
    while index < len(text):
        if text[index] == ".":
            name = _read_field_name(text, index + 1)
            yield FieldStep(_unquote_field_name(name))
            index += 1 + len(name)
        elif text[index] == "[":
            end = text.find("]", index)
            if end < 0:
                raise InvalidPathError(f"{text!r}: the bracket at character {index + 1} is not closed")
            yield _parse_bracket_step(text, text[index + 1 : end].strip(), index)
            index = end + 1
        else:
            raise InvalidPathError(f"{text!r}: character {index + 1} is {text[index]!r}, where . or [ is expected")


def _parse_bracket_step(text: str, inside: str, index: int) -> PathStep:
    if inside == "*":
        return EachElementStep()
    if _NUMBER.fullmatch(inside):
        return ArrayIndexStep(int(inside))
    if found := re.fullmatch(r"(-?\d+)?\s*:\s*(-?\d+)?", inside):
        return ArraySliceStep(*(None if part is None else int(part) for part in found.groups()))
    raise InvalidPathError(f"{text!r}: [{inside}] at character {index + 1} is none of [*], [2], [-1] and [1:-2]")


def _read_field_name(text: str, index: int) -> str:
    found = _NAME.match(text, index)
    if found is None:
        raise InvalidPathError(
            f'{text!r}: a name is missing at character {index + 1}; names with other signs are quoted, "x.y"'
        )
    return found[0]


def _unquote_field_name(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name[1:-1]) if name.startswith('"') else name
