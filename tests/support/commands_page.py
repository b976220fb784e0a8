"""Writes `docs/reference/commands.md` from the command line itself: `make reference`."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

import typer

from sessionlake import errors
from sessionlake.cli import app

_HEAD = """\
# Commands

Every command of `sessionlake`, with its arguments and options. `--config FILE` is taken by all that read settings:
without it, `SESSIONLAKE_CONFIG` names the file, else it is `sessionlake.yml` in `SESSIONLAKE_HOME` or in this folder.

Made by `make reference` from the command line itself.

## Exit codes

| code | meaning |
|---|---|
| 0 | it is done |
"""
_LATER = ("| 130 | interrupted by Ctrl-C, or by a signal to stop |", "")
_EVERYWHERE = "--config"


def page() -> str:
    """The whole page, in Markdown."""
    lines = [_HEAD.rstrip("\n"), *_exit_codes(), *_LATER]
    for name, command in commands_of(typer.main.get_command(app.app)):
        lines += [f"## {name}", "", str(command.help or ""), ""]
        parameters = [
            one for one in command.params if _EVERYWHERE not in one.opts and not getattr(one, "hidden", False)
        ]
        if parameters:
            lines += ["| argument or option | default | meaning |", "|---|---|---|"]
            lines += [f"| {_name(one)} | {_default(one)} | {_cell(one.help or '')} |" for one in parameters]
            lines.append("")
    return "\n".join(lines)


def commands_of(command: Any, path: str = "sessionlake") -> Iterator[tuple[str, Any]]:
    """The commands that do something, with their full names."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
    for name, below in sorted((inner or {}).items()):
        if not getattr(below, "hidden", False):
            yield from commands_of(below, f"{path} {name}")


def _exit_codes() -> Iterator[str]:
    """A line for each code that an error of the operator's has."""
    codes: dict[int, list[str]] = {}
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.SessionlakeError):
            codes.setdefault(kind.exit_code, []).append(f"[{name}](errors.md#{name.lower()})")
    for code, names in sorted(codes.items()):
        yield f"| {code} | {', '.join(sorted(names))} |"


def _name(parameter: Any) -> str:
    words = [*parameter.opts, *parameter.secondary_opts]
    if not words[0].startswith("-"):
        return f"`{words[0].upper()}`" if parameter.required else f"`[{words[0].upper()}]`"
    return ", ".join(f"`{word}`" for word in words) + (" (several)" if parameter.multiple else "")


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "must be given"
    if value is None or value is False or callable(value):
        return ""
    return f"`{value.value if isinstance(value, enum.Enum) else value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
