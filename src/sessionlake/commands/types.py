"""The declared columns as a Python module."""

from __future__ import annotations

import typer

from sessionlake.commands.context import Config, settings_of


def types(config: Config = None) -> None:
    """Print a Python module with the types of the rows that processors are given, out of capture.columns."""
    settings = settings_of(config)
    from sessionlake.processors.typed import module_of

    typer.echo(module_of(settings), nl=False)
