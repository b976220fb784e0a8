"""Lists the keys that a section of the settings may have, for errors about unknown keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel


def list_known_settings_keys(settings: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Returns the keys that a section of the settings may have, sorted; empty if the section allows any key.

    Args:
        settings: The type of the whole settings.
        location: The keys and list indices that lead to the section, as pydantic's errors have them.
    """
    annotation: Any = settings
    for part in location:
        annotation = _find_type_of_nested_value(annotation, part)
    section = next(_iterate_settings_section_types(annotation), None)
    return [] if section is None else sorted(field.alias or name for name, field in section.model_fields.items())


def _find_type_of_nested_value(annotation: Any, part: int | str) -> Any:
    """Returns the type of the value at a key or list index of a value with this type; None if it has no such part."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if part == annotation.__name__:  # pydantic names the type that it has tried, if there are several
            return annotation
        fields = annotation.model_fields.items()
        return next((field.annotation for name, field in fields if part in {name, field.alias}), None)
    inner = get_args(annotation)
    if get_origin(annotation) in {dict, list, tuple}:
        return inner[-1] if get_origin(annotation) is dict else inner[0]
    return next((found for one in inner if (found := _find_type_of_nested_value(one, part)) is not None), None)


def _iterate_settings_section_types(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yields the types of settings sections that a type allows: itself, or the members of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) not in {dict, list, tuple}:
        for one in get_args(annotation):
            yield from _iterate_settings_section_types(one)
