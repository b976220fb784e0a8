"""Writes `docs/reference/settings.md` from the settings' classes: `make reference`."""

from __future__ import annotations

import ast
import enum
import inspect
import textwrap
import typing
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from pathlib import PurePath
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ByteSize, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sessionlake.settings.model import Settings

_HEAD = """\
# Settings

Every key of `sessionlake.yml`, with its type, its default and its meaning. `[]` stands for an item of a list, `<name>`
for a name of your own. An environment variable wins over the file: `SESSIONLAKE_KAFKA__TOPIC_PATTERN` sets
`kafka.topic_pattern`, with two underscores between sections.

Made by `make reference` from the settings' classes.
"""
_NAMED = {
    bool: "true or false", int: "integer", float: "number", str: "text", timedelta: "duration", ByteSize: "size",
    SecretStr: "secret", type(None): "null",
}  # fmt: skip
_UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))


class Setting(NamedTuple):
    """A key of the configuration. `meaning` is the text below the field in its class."""

    key: str
    type: str
    default: str
    meaning: str


def page() -> str:
    """The whole page, in Markdown: a table for each top-level section."""
    lines, section = [_HEAD], ""
    for setting in settings_of(Settings):
        top = setting.key.split(".")[0].split("[")[0]
        if (top != section and setting.type == "section") or not section:
            section = top
            heading = top if setting.type == "section" else "General"
            lines += [f"## {heading}", "", "| key | type | default | meaning |", "|---|---|---|---|"]
        lines.append(f"| `{setting.key}` | {setting.type} | {setting.default} | {setting.meaning} |")
    return _between_sections("\n".join(lines) + "\n")


def settings_of(model: type[BaseModel], prefix: str = "") -> Iterator[Setting]:
    """The keys of a section, then those of the sections in it, depth first."""
    texts = _texts(model)
    for name, field in model.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        sections = [*_models(field.annotation)]
        meaning = texts.get(name) or (_first_paragraph(sections[0][0]) if sections else "")
        yield Setting(key, _type(field.annotation), _default(field), meaning)
        for inner, suffix in sections:
            yield from settings_of(inner, f"{key}{suffix}.")


def _first_paragraph(model: type[BaseModel]) -> str:
    return " ".join((inspect.getdoc(model) or "").split("\n\n")[0].split())


def _between_sections(text: str) -> str:
    return text.replace("\n## ", "\n\n## ").replace("\n\n\n", "\n\n")


def _models(annotation: Any, suffix: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    """The sections in a type, and what stands behind the key of each."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation, suffix
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (list, tuple):
        suffix += "[]"
    elif origin is dict:
        suffix, arguments = f"{suffix}.<name>", arguments[1:]
    for argument in arguments if origin is not Literal else ():
        yield from _models(argument, suffix)


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is None:
        return _class(annotation)
    if origin is Literal:
        return " or ".join(f"`{one}`" for one in arguments)
    if origin is typing.Annotated:
        return _type(arguments[0])
    inner = [_type(one) for one in arguments if one not in (type(None), ...)]
    if origin in (list, tuple):
        return f"list of {inner[0]}"
    return (" → " if origin is dict else " or ").join(dict.fromkeys(inner))


def _class(annotation: Any) -> str:
    kinds = ((BaseModel, "section"), (PurePath, "path"))
    if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        return " or ".join(f"`{one.value}`" for one in annotation)
    known = next((word for kind, word in kinds if inspect.isclass(annotation) and issubclass(annotation, kind)), None)
    return known or _NAMED.get(annotation, "any")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be set"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or isinstance(value, BaseModel) or value in (None, (), {}, [], ""):
        return ""
    return f"`{_shown(value)}`"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        unit, length = next(((unit, length) for unit, length in _UNITS if seconds % length == 0), ("ms", 0.001))
        return f"{seconds / length:g} {unit}"
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, ByteSize):
        return value.human_readable().replace(".0", "")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_shown(item)}" for name, item in value.items()) + "}"
    return str(value)


@cache
def _texts(model: type[BaseModel]) -> dict[str, str]:
    """The text below each field of a class and of those it inherits from."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel and base.__module__.startswith("sessionlake"):
            found |= _texts_in(base)
    return found


def _texts_in(model: type[BaseModel]) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            found[field.target.id] = " ".join(str(text.value.value).split()).replace("|", "\\|") if is_text else ""
    return found
