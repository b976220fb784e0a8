"""One session, looked at: its table now, or at any moment of its history."""

from __future__ import annotations

import operator
import re
from datetime import datetime

from sessionlake.cli.show import OutputFormat, show_table
from sessionlake.delta.schemas.names import ROWS
from sessionlake.delta.storage.reading import TableReader
from sessionlake.errors import UsageError
from sessionlake.history.asof import find_session, table_as_of, to_ms
from sessionlake.protocol.arrow import SESSION
from sessionlake.settings.model import Settings
from sessionlake.silver.tables.as_of import AsOf

_MS = re.compile(r"-?\d{1,18}")


def show_session(
    reader: TableReader,
    settings: Settings,
    session: str,
    topic: str | None,
    form: OutputFormat,
    partition: int | None = None,
) -> None:
    """Writes the rows of a session's table as it is now, by row id.

    Raises:
        LakeError: silver has no tables yet.
        UsageError: there is no such session, or several are meant, by topic or partition.
    """
    found = find_session(reader, settings, session, topic, partition)
    own = [(name, operator.eq, getattr(found, name)) for name in SESSION]
    show_table(reader.table(ROWS, *own).drop_columns(list(SESSION)).sort_by("row_id"), form)


def show_session_as_of(
    reader: TableReader,
    settings: Settings,
    session: str,
    topic: str | None,
    moment: AsOf,
    form: OutputFormat,
    partition: int | None = None,
) -> None:
    """Writes the rows of a session's table as it was at a moment, by row id.

    Raises:
        LakeError: the moment is not known, with what is.
        UsageError: as `show_session`.
    """
    found = find_session(reader, settings, session, topic, partition)
    show_table(table_as_of(reader, settings, found, moment), form)


def moment_of(ts: str | None, seq: int | None, offset: int | None) -> AsOf:
    """The moment that is asked for.

    Args:
        ts: ISO 8601, in UTC unless it says otherwise, or milliseconds since the epoch.

    Raises:
        UsageError: not exactly one is given, or the time is none.
    """
    given = [name for name, value in (("--ts", ts), ("--seq", seq), ("--offset", offset)) if value is not None]
    if len(given) != 1:
        raise UsageError(f"as-of takes exactly one of --ts, --seq and --offset; given: {', '.join(given) or 'none'}")
    return AsOf(ts=None if ts is None else _milliseconds(ts), seq=seq, offset=offset)


def _milliseconds(ts: str) -> int:
    if _MS.fullmatch(ts):
        return int(ts)
    try:
        return to_ms(datetime.fromisoformat(ts))
    except ValueError:
        raise UsageError(
            f"--ts {ts!r}: expected ISO 8601, as in 2026-11-21T18:18:32.668Z, or milliseconds since the epoch"
        ) from None
