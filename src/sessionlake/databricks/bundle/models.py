"""Checks a resource against its model: which keys it may have, which it needs, and the type and values of each.

The models are in `models.json`, which `make bundle-models` writes. A type there is one of these:

- `text`, `int`, `float`, `bool`, `any`
- `[T]`: a list; `{"*": T}`: a mapping with any keys
- a name: one of the `classes`, or one of the `enums`, which are lists of values

A `!` behind a key says that the key is required.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from sessionlake.databricks.bundle.files import ResourceFault
from sessionlake.settings.file import KeyPath

MODEL_FILE = Path(__file__).with_name("models.json")
NOT_A_KEY = " is not a key of "
"""Words of a fault about a key itself, not about its value."""
REQUIRED = "is required, but missing or empty"
"""Words of a fault about a key that is missing."""
_UNKNOWN = re.compile(r"<[\w. -]+>|.*\$\{.+\}.*", re.DOTALL)
"""A value that only the deployment knows: a variable without a value, an id, or a reference that is not filled in."""
_NAMES = {"text": "a text", "int": "an integer", "float": "a number", "bool": "true or false"}
_INTEGER, _NUMBER = re.compile(r"[+-]?\d+"), re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class ResourceModels:
    """The allowed keys and values of a bundle's resources.

    Attributes:
        kinds: For each kind of resource, such as `jobs`, the name of its class.
        enums: For each list of allowed values, by its name: the values.
        classes: For each class, by its name: the type of each key.
    """

    kinds: Mapping[str, str]
    enums: Mapping[str, list[str]]
    classes: Mapping[str, Mapping[str, Any]]

    def map_keys_to_types(self, name: str) -> dict[str, Any]:
        """Returns the type of each key of a class, by the key."""
        return {key.removesuffix("!"): kind for key, kind in self.classes[name].items()}


@cache
def read_resource_models() -> ResourceModels:
    """Returns the models of the kinds of resources that a bundle may have."""
    return ResourceModels(**json.loads(MODEL_FILE.read_text(encoding="utf-8")))


def find_key_and_type_faults(
    models: ResourceModels, kind: Any, value: Any, key: KeyPath = ()
) -> Iterator[ResourceFault]:
    """Yields key and text of each place where a value does not have the required type.

    Args:
        models: The models.
        kind: The required type, in the form that the module describes.
        value: The value.
        key: Path of keys to the value.
    """
    if value is None or kind == "any" or is_known_only_to_deployment(value):
        return
    if isinstance(kind, list):
        yield from _find_faults_of_list(models, kind[0], value, key)
    elif isinstance(kind, dict) or kind in models.classes:
        yield from _find_faults_of_mapping(models, kind, value, key)
    elif kind in models.enums:
        if value not in models.enums[kind]:
            allowed = _list_allowed_values_with_hint(models.enums[kind], value)
            yield key, f"{_get_last_name_in_key(key)}: {value!r} is not one of {allowed}"
    elif not _is_accepted_scalar(kind, value):
        yield key, _describe_wrong_type(key, value, _NAMES[kind])


def suggest_similar_name(name: object, known: list[str]) -> str:
    """Returns a question with the known name most similar to `name`, as in `. Did you mean 'jobs'?`; else empty."""
    found = get_close_matches(str(name), known, n=1, cutoff=0.6)
    return f". Did you mean {found[0]!r}?" if found else ""


def is_known_only_to_deployment(value: object) -> bool:
    """Returns True if only a deployment knows the value: it is an id, or refers to a variable without a value."""
    return isinstance(value, str) and _UNKNOWN.fullmatch(value) is not None


def _find_faults_of_list(models: ResourceModels, kind: Any, value: Any, key: KeyPath) -> Iterator[ResourceFault]:
    if not isinstance(value, list):
        yield key, _describe_wrong_type(key, value, "a list")
        return
    for number, item in enumerate(value):
        yield from find_key_and_type_faults(models, kind, item, (*key, number))


def _find_faults_of_mapping(models: ResourceModels, kind: Any, value: Any, key: KeyPath) -> Iterator[ResourceFault]:
    if not isinstance(value, dict):
        yield key, _describe_wrong_type(key, value, "a mapping of keys")
    elif isinstance(kind, dict):
        for name, own in value.items():
            yield from find_key_and_type_faults(models, kind["*"], own, (*key, name))
    else:
        yield from _find_faults_of_model_class(models, kind, value, key)


def _find_faults_of_model_class(
    models: ResourceModels, name: str, value: dict[str, Any], key: KeyPath
) -> Iterator[ResourceFault]:
    known = models.map_keys_to_types(name)
    for own, content in value.items():
        if own not in known:
            text = f"{own!r}{NOT_A_KEY}{name.rpartition('.')[2]}, so a deployment ignores it"
            hint = suggest_similar_name(own, list(known)) or f". It has the keys {', '.join(known)}"
            yield (*key, own), text + hint
        else:
            yield from find_key_and_type_faults(models, known[own], content, (*key, own))
    for own in models.classes[name]:
        if own.endswith("!") and value.get(own[:-1]) in (None, "", [], {}):
            yield (*key, own[:-1]), f"{_get_last_name_in_key((*key, own[:-1]))} {REQUIRED}. Add it"


def _is_accepted_scalar(kind: str, value: Any) -> bool:
    """Returns True if a deployment accepts the value for a simple type. It reads numbers from texts and vice versa."""
    if isinstance(value, dict | list):
        return False
    if kind == "text":
        return True
    if kind == "bool":
        return isinstance(value, bool) or value in {"true", "false"}
    pattern = _INTEGER if kind == "int" else _NUMBER
    return not isinstance(value, bool) and pattern.fullmatch(_format_scalar_as_text(value)) is not None


def _format_scalar_as_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _describe_wrong_type(key: KeyPath, value: Any, wanted: str) -> str:
    found = "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)
    return f"{_get_last_name_in_key(key)} must be {wanted}, found {found}"


def _get_last_name_in_key(key: KeyPath) -> str:
    """Returns the last name in a path of keys, such as `tasks`, skipping the numbers of list items."""
    return next((str(part) for part in reversed(key) if isinstance(part, str)), "the resource")


def _list_allowed_values_with_hint(values: list[str], value: object) -> str:
    return ", ".join(values) + suggest_similar_name(value, values)
