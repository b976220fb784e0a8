"""What is kept of a table's history, and what maintenance did to its files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Compacted:
    """How many files a table had before small ones were merged, and has since."""

    before: int
    after: int


@dataclass(frozen=True)
class Vacuumed:
    """Files that no version needed any more, and their bytes, where these are known."""

    files: int
    freed: int


@dataclass(frozen=True)
class HistoryToKeep:
    """What of a table's history must stay.

    Attributes:
        span: how far back from now, of its files.
        since: the oldest version that a stream has yet to read, if any.
        versions: how far back, of its log, where that is removed here; None: as far.
    """

    file_span: timedelta
    first_unread: int | None = None
    log_span: timedelta | None = None
