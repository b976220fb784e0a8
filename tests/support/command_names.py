"""The names of all commands, as the command line itself has them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import typer.main

from sessionlake.cli import app


def command_names() -> set[str]:
    """Returns the full name of each command that does something, as in `rules apply`."""
    return set(_names(typer.main.get_command(app.app)))


def unlisted_commands(listed: Collection[str], others: Collection[str]) -> set[str]:
    """Returns the commands that no listed text begins with, except those of the groups in `others`."""
    names = (name for name in command_names() if name.split()[0] not in others)
    return {name for name in names if not any(text.startswith(name) for text in listed)}


def _names(command: Any, path: str = "") -> Iterator[str]:
    inner = getattr(command, "commands", {})
    for name in inner:
        yield from _names(inner[name], f"{path} {name}".strip())
    if not inner:
        yield path
