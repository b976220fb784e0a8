"""Finds out which parts of a message a feed reads, and creates msgspec types that decode only these parts.

Decoding into such a type is faster than decoding into dicts, because fields that no path reads are skipped. They are
still checked: they must be valid JSON.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sessionlake.feeds.paths import MISSING

_SCALARS = str | int | float | bool | None
_MOST_PLACES = 64
_PLAIN_NAME = re.compile(r'[^\x00-\x1f"\\]*')
"""Names that msgspec allows for fields of JSON objects."""


@dataclass
class JsonShape:
    """The parts of a JSON value that a feed reads.

    Attributes:
        fields: Shapes of the fields that are read if the value is an object, by name.
        places: Shapes of the elements that are read if the value is an array, by index.
        items: Shape of every element if all elements of an array are read; None otherwise.
        is_read: True if the value itself is read, or if a part of it is read in a way that needs all of it.
        refuses: For each way of reading rows: True if an object with an undeclared field must be refused.
        kind: Type of a decoded object, or of a decoded array if `places` is used; None if the value is decoded to
            Python's types.
    """

    fields: dict[str, JsonShape] = field(default_factory=dict)
    places: dict[int, JsonShape] = field(default_factory=dict)
    items: JsonShape | None = None
    is_read: bool = False
    refuses: set[bool] = field(default_factory=set)
    kind: type | None = None

    def get_or_add_field(self, name: str) -> JsonShape:
        """Returns the shape of an object's field, which is new if nothing of the field was read before."""
        return self.fields.setdefault(name, JsonShape())

    def get_or_add_element(self, index: int) -> JsonShape:
        """Returns the shape of the element at an index of an array, which is new if nothing of it was read before.

        An index below 0, or from 64 on, makes the whole array be read.
        """
        self.is_read |= not 0 <= index < _MOST_PLACES
        return self.places.setdefault(index, JsonShape())

    def get_or_add_items(self) -> JsonShape:
        """Returns the shape of all elements of an array."""
        if self.items is None:
            self.items = JsonShape()
        return self.items

    def get_attribute_name(self, step: str | int) -> str:
        """Returns the attribute of a decoded `kind` that has the field of a name, or the element at an index."""
        return f"f{step}" if isinstance(step, int) else f"f{list(self.fields).index(step)}"

    def create_msgspec_type(self) -> Any:
        """Returns the type that msgspec decodes the value into, and sets `kind` here and in the parts.

        A value of another JSON type than the paths expect is decoded to Python's types.
        """
        names = list(self.fields)
        is_plain = all(map(_PLAIN_NAME.fullmatch, names)) and len(self.refuses) < 2  # noqa: PLR2004 - the set has both truths
        ways = bool(names) + bool(self.places) + (self.items is not None)
        if self.is_read or not is_plain or ways != 1:
            return Any
        if self.items is not None:
            item: Any = self.items.create_msgspec_type()
            return list[item] | dict[str, Any] | _SCALARS
        if names:
            fields = [
                (f"f{number}", self.fields[name].create_msgspec_type(), MISSING) for number, name in enumerate(names)
            ]
            self.kind = msgspec.defstruct(
                "Object", fields, gc=False, rename={f"f{number}": name for number, name in enumerate(names)},
                forbid_unknown_fields=True in self.refuses,
            )  # fmt: skip
            return self.kind | list[Any] | _SCALARS
        shapes = [self.places.get(number, JsonShape()) for number in range(max(self.places) + 1)]
        elements = [(f"f{number}", shape.create_msgspec_type(), MISSING) for number, shape in enumerate(shapes)]
        self.kind = msgspec.defstruct("Array", elements, gc=False, array_like=True)
        return self.kind | dict[str, Any] | _SCALARS
