"""The declared columns as a Python module."""

from __future__ import annotations

from sessionlake.cli.context import Config, settings_of
from sessionlake.cli.show import write_line


def types(config: Config = None) -> None:
    """Print a Python module with the types of the rows that processors are given, out of capture.columns."""
    settings = settings_of(config)
    from sessionlake.processors.typed import module_of

    write_line(module_of(settings).rstrip("\n"))
