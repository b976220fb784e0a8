"""The declared columns as a Python module."""

from __future__ import annotations

from sessionlake.cli.context import Config, settings_of
from sessionlake.cli.show import write_line


def types(config: Config = None) -> None:
    """Print a Python module with the types of the rows that processors are given, out of capture.columns."""
    settings = settings_of(config)
    from sessionlake.processors.typed import types_module

    write_line(types_module(settings).rstrip("\n"))
