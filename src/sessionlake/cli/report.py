"""One page that shows what the lake holds."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from sessionlake.cli.context import say, with_reader
from sessionlake.errors import MachineError
from sessionlake.history.report.page import write_report
from sessionlake.local.paths import uri_of
from sessionlake.settings.model import Settings


def report(settings: Settings, file: Path | None, *, show: bool) -> Path:
    """Writes the page, and shows it in the browser if asked; returns where it is.

    Raises:
        MachineError: the file cannot be written.
    """
    try:
        written = with_reader(settings, lambda reader: write_report(reader, settings, file))
    except OSError as error:
        raise MachineError(f"report: {error.filename or file} cannot be written: {error.strerror}") from error
    if show and not webbrowser.open(uri_of(written)):
        say("no browser could be opened here")
    return written
