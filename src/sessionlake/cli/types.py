"""`sessionlake types`: prints the declared columns as Python types."""

from __future__ import annotations

from sessionlake.cli.context import Config, load_config
from sessionlake.cli.show import write_line


def types(config: Config = None) -> None:
    """Print a Python module with the types of the rows that processors get.

    The types are those of `capture.columns`.
    """
    settings = load_config(config)
    from sessionlake.processors.typed import generate_types_source

    write_line(generate_types_source(settings).rstrip("\n"))
