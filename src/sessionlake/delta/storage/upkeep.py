"""Values for file maintenance: how much of a table's history to keep, and the results of compaction and VACUUM."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class CompactionResult:
    """The result of a compaction (merging of small files).

    Attributes:
        before: number of the table's files before it.
        after: number of the table's files after it.
    """

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
    """How much of a table's history must stay readable.

    Attributes:
        file_span: files are kept that a version needs which was current within this time before now.
        first_unread: the oldest version that a stream has not read yet. Later versions are kept, too. None if no stream
            reads the table.
        log_span: log entries of this time before now are kept, if sessionlake removes log entries. None to use
            `file_span`.
    """

    file_span: timedelta
    first_unread: int | None = None
    log_span: timedelta | None = None
