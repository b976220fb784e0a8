"""Values for file maintenance: how much of a table's history to keep, and the results of compaction and VACUUM."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class CompactionResult:
    """The result of a compaction: number of files of the table before and after small files were merged."""

    before: int
    after: int


@dataclass(frozen=True)
class VacuumResult:
    """The result of a VACUUM.

    Attributes:
        files: number of removed files.
        freed: size of the removed files in bytes; 0 if unknown.
    """

    files: int
    freed: int


@dataclass(frozen=True)
class HistoryToKeep:
    """How much of a table's history must be kept.

    Attributes:
        file_span: files that a version of this recent past needs are kept.
        first_unread: the oldest version that a stream has not read yet. Later versions are kept, too. None if no stream
            reads the table.
        log_span: log entries of this recent past are kept, if sessionlake removes log entries. None to use `file_span`.
    """

    file_span: timedelta
    first_unread: int | None = None
    log_span: timedelta | None = None
