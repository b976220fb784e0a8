"""What to keep of a table's history, and results of file maintenance."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Compacted:
    """Number of files of a table before and after small files were merged."""

    before: int
    after: int


@dataclass(frozen=True)
class Vacuumed:
    """Number of removed files, and their bytes (0 if unknown)."""

    files: int
    freed: int


@dataclass(frozen=True)
class HistoryToKeep:
    """What of a table's history must stay.

    Attributes:
        file_span: how long files of old versions stay, counted back from now.
        first_unread: the oldest version that a stream has not read yet; None if none waits.
        log_span: how long log entries stay where sessionlake removes them; None: as long as files.
    """

    file_span: timedelta
    first_unread: int | None = None
    log_span: timedelta | None = None
