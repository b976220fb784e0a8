"""Writes the keys, types and values that a bundle's resources may have: `make bundle-models`.

They come from the models of `databricks-bundles`, a development dependency. `sessionlake doctor --bundle` reads the
file that this module writes, so it needs no further package.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from importlib import import_module
from typing import Any

from databricks.bundles.core import Variable

from sessionlake.databricks.bundle.models import MODEL_FILE

KINDS = {
    "alerts": "Alert",
    "clusters": "Cluster",
    "dashboards": "Dashboard",
    "jobs": "Job",
    "pipelines": "Pipeline",
    "registered_models": "RegisteredModel",
    "schemas": "Schema",
    "secret_scopes": "SecretScope",
    "sql_warehouses": "SqlWarehouse",
    "volumes": "Volume",
}
"""Kinds of resources that this bundle has, or that users add to it, with the names of their models."""
_SCALARS = {str: "text", int: "int", float: "float", bool: "bool", Any: "any"}


@dataclasses.dataclass
class _Models:
    classes: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    enums: dict[str, list[str]] = dataclasses.field(default_factory=dict)


def write_models() -> str:
    """The content of the file: a line for each class and each list of values."""
    models = _Models()
    kinds = {
        kind: _describe(getattr(import_module(f"databricks.bundles.{kind}"), name), models)
        for kind, name in KINDS.items()
    }
    parts = {"kinds": kinds, "enums": models.enums, "classes": models.classes}
    return "{\n" + ",\n".join(f'"{name}": {_write_lines(content)}' for name, content in parts.items()) + "\n}\n"


def _write_lines(content: dict[str, Any]) -> str:
    lines = (f" {json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(content.items()))
    return "{\n" + ",\n".join(lines) + "\n}"


def _describe(kind: Any, models: _Models) -> Any:
    """A type as the file has it: `[T]` is a list, `{"*": T}` a mapping with any keys, and a name a class or values."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) in {typing.Union, types.UnionType}:
        # A model allows a variable, or None, wherever it allows a value.
        [own] = [one for one in arguments if one is not type(None) and (typing.get_origin(one) or one) is not Variable]
        return _describe(own, models)
    if typing.get_origin(kind) is list:
        return [_describe(arguments[0], models)]
    if typing.get_origin(kind) is dict:
        return {"*": _describe(arguments[1], models)}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        values = [own.value for own in kind]
        name = kind.__name__
        if models.enums.setdefault(name, values) != values:
            name = f"{kind.__module__.split('.')[2]}.{name}"
            models.enums[name] = values
        return name
    if dataclasses.is_dataclass(kind):
        return _describe_class(typing.cast("type", kind), models)
    return _SCALARS[kind]


def _describe_class(kind: type, models: _Models) -> str:
    name = f"{kind.__module__.split('.')[2]}.{kind.__name__}"
    if name not in models.classes:
        keys = models.classes[name] = {}
        hints = typing.get_type_hints(kind)
        for own in dataclasses.fields(kind):
            missing = {own.default, own.default_factory} == {dataclasses.MISSING}
            keys[own.name + "!" * missing] = _describe(hints[own.name], models)
    return name


if __name__ == "__main__":
    MODEL_FILE.write_text(write_models(), encoding="utf-8")
