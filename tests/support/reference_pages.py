"""The pages of settings and of commands, made from the code: `make reference`."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from typing import Any

import typer.main
from pydantic import BaseModel, ByteSize, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sessionlake.cli import app
from sessionlake.settings.model import Settings

_SETTINGS = """\
# Settings

Every key of `sessionlake.yml`, with its default. As an environment variable a key is `SESSIONLAKE_` and the key in
capitals, with `__` between levels: `kafka.topic_pattern` is `SESSIONLAKE_KAFKA__TOPIC_PATTERN`.

Environment variables that are not settings:

- `SESSIONLAKE_CONFIG`: names the configuration file, like the option `--config`
- `SESSIONLAKE_TARGET`: names a section under `targets` in the file, whose settings override the others
- `SESSIONLAKE_SECRET_SCOPE`: on Databricks, names the secret scope in which `!secret KEY` is looked up
- `SESSIONLAKE_CACHE`: names the folder for jars and Spark's classes, instead of `~/.cache/sessionlake`
- `SESSIONLAKE_DEBUG=1`: shows the stack trace of an error

A key with `[]` belongs to each entry of a list. Durations are a number and a unit, as in `10 minutes`.

Made by `make reference` from the settings in the code.
"""
_COMMANDS = """\
# Commands and options

Every command of `sessionlake`. All take `--config FILE`, which is left out below, and `--help`.

Made by `make reference` from the command line in the code.
"""
_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def settings_page() -> str:
    """The page of all settings, in Markdown."""
    lines = [_SETTINGS]
    top = [name for name, field in Settings.model_fields.items() if _model(field.annotation) is None]
    lines += ["## Top level", "", *_head(), *(_row(Settings, name, "") for name in top), ""]
    for name, field in Settings.model_fields.items():
        model = _model(field.annotation)
        if model is not None:
            prefix = f"{name}[]" if _is_list(field.annotation) else name
            lines += [f"## {name}", "", _first_paragraph(model), "", *_head(), *_rows(model, f"{prefix}."), ""]
    return "\n".join(lines)


def commands_page() -> str:
    """The page of all commands, in Markdown."""
    return "\n".join([_COMMANDS, *_commands(typer.main.get_command(app.app), "sessionlake")])


def _head() -> list[str]:
    return ["| key | default | meaning |", "|---|---|---|"]


def _rows(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield _row(model, name, prefix)
        inner = _model(field.annotation)
        if inner is not None:
            yield from _rows(inner, f"{prefix}{name}{'[]' if _is_list(field.annotation) else ''}.")


def _row(model: type[BaseModel], name: str, prefix: str) -> str:
    field = model.model_fields[name]
    inner = _model(field.annotation)
    words = [_texts(model).get(name) or (_first_paragraph(inner) if inner else ""), _allowed(field.annotation)]
    meaning = " ".join(" ".join(words).split()).replace("|", "\\|")
    return f"| `{prefix}{field.alias or name}` | {_default(field)} | {meaning} |"


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "" if field.default_factory else "required"
    if value in (None, (), {}) or isinstance(value, BaseModel):
        return ""
    return f"`{_written(value)}`"


def _written(value: Any) -> str:
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        size, unit = next(((size, unit) for size, unit in _UNITS if seconds % size == 0), (1, "second"))
        number = seconds / size
        return f"{number:g} {unit}{'s' if number != 1 else ''}"
    if isinstance(value, ByteSize):
        size, unit = next(((size, unit) for size, unit in _SIZES if value % size == 0), (1, "bytes"))
        return f"{value // size} {unit}"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {one}" for key, one in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(_written(one) for one in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parts(annotation: Any) -> tuple[Any, ...]:
    """What an optional or listed type is made of, else the type itself."""
    if typing.get_origin(annotation) in {typing.Union, types.UnionType, tuple, list, typing.Annotated}:
        return tuple(part for inner in typing.get_args(annotation) for part in _parts(inner))
    return (annotation,)


def _model(annotation: Any) -> type[BaseModel] | None:
    found = [part for part in _parts(annotation) if isinstance(part, type) and issubclass(part, BaseModel)]
    return found[0] if found else None


def _is_list(annotation: Any) -> bool:
    return typing.get_origin(annotation) in {tuple, list}


def _allowed(annotation: Any) -> str:
    kinds = [part for part in _parts(annotation) if isinstance(part, type) and issubclass(part, Enum)]
    if kinds and not any(part is SecretStr for part in _parts(annotation)):
        return f"One of {', '.join(f'`{one.value}`' for one in kinds[0])}."
    return ""


def _texts(model: type[BaseModel]) -> dict[str, str]:
    """The text below each field of a model, of its bases too."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, BaseModel) and kind.__module__.startswith("sessionlake"):
            body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
            assert isinstance(body, ast.ClassDef)
            for node, following in zip(body.body, body.body[1:], strict=False):
                text = getattr(getattr(following, "value", None), "value", None)
                if isinstance(node, ast.AnnAssign) and isinstance(following, ast.Expr) and isinstance(text, str):
                    found[ast.unparse(node.target)] = text
    return found


def _first_paragraph(model: type[BaseModel]) -> str:
    return " ".join((inspect.getdoc(model) or "").split("\n\n")[0].split())


# Typer's own copy of Click has no public types.
def _commands(group: Any, path: str) -> Iterator[str]:
    context = typer.Context(group)
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from _commands(command, f"{path} {name}")
        elif not command.hidden:
            yield from _command(command, f"{path} {name}")


def _command(command: Any, path: str) -> Iterator[str]:
    shown = [p for p in command.params if not getattr(p, "hidden", False) and p.name not in {"config", "help"}]
    arguments = [_name(parameter) for parameter in shown if parameter.param_type_name == "argument"]
    yield from (f"## {' '.join([path, *arguments])}", "", _sentence(command.help or ""), "")
    if shown:
        yield from ("| argument or option | default | meaning |", "|---|---|---|", *map(_option, shown), "")


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name).upper()
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def _option(parameter: Any) -> str:
    default = parameter.default
    shown = "required" if parameter.required else ""
    if not shown and isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        shown = f"`{_written(default)}`"
    text = _sentence(parameter.help or "").replace("|", "\\|").replace("<", "&lt;")
    allowed = _allowed(parameter.type_descriptor.annotation)
    return f"| `{_name(parameter)}` | {shown} | {f'{text} {allowed}'.strip()} |"


def _sentence(text: str) -> str:
    return " ".join(text.split("\f", maxsplit=1)[0].split())
