"""`sessionlake session`: shows the table of one session, now or at a past moment."""

from __future__ import annotations

import operator
import re
from datetime import datetime

import pyarrow as pa

from sessionlake.cli.context import print_to_stderr
from sessionlake.cli.show import OutputFormat, show_table
from sessionlake.delta.schemas.names import ROWS
from sessionlake.delta.storage.reading import TableReader
from sessionlake.errors import UsageError
from sessionlake.history.asof import compute_session_table, convert_datetime_to_ms, find_session
from sessionlake.protocol.arrow import SESSION
from sessionlake.settings.model import Settings
from sessionlake.silver.tables.as_of import SessionMoment

_MS = re.compile(r"-?\d{1,18}")


def show_session(
    reader: TableReader,
    settings: Settings,
    session: str,
    topic: str | None,
    form: OutputFormat,
    partition: int | None = None,
) -> None:
    """Prints the rows of a session's table as it is now, sorted by row id.

    Raises:
        LakeError: Silver has no tables yet.
        UsageError: The session does not exist, or several topics or partitions have its id.
    """
    session_key = find_session(reader, settings, session, topic, partition)
    conditions = [(name, operator.eq, getattr(session_key, name)) for name in SESSION]
    show_session_table(reader.read_arrow_table(ROWS, *conditions).drop_columns(list(SESSION)).sort_by("row_id"), form)


def show_session_as_of(
    reader: TableReader,
    settings: Settings,
    session: str,
    topic: str | None,
    moment: SessionMoment,
    form: OutputFormat,
    partition: int | None = None,
) -> None:
    """Prints the rows of a session's table as it was at a moment, sorted by row id.

    Raises:
        LakeError: The table at that moment is unknown. The text says which moments are known.
        UsageError: The session does not exist, or several topics or partitions have its id.
    """
    session_key = find_session(reader, settings, session, topic, partition)
    show_session_table(compute_session_table(reader, settings, session_key, moment), form)


def show_session_table(table: pa.Table, form: OutputFormat) -> None:
    """Prints a session's table. In the format for people, columns without any value are left out, and named."""
    if form is OutputFormat.TABLE and table.num_rows:
        empty = [name for name in table.column_names if table[name].null_count == table.num_rows]
        table = table.drop_columns(empty)
        if empty:
            print_to_stderr(f"without columns that have no value: {', '.join(empty)}")
    show_table(table, form, bytes_as_base64=True)


def parse_session_moment(ts: str | None, seq: int | None, offset: int | None) -> SessionMoment:
    """Returns the moment that exactly one of three options names.

    Args:
        ts: Stream time: milliseconds since 1970, or ISO 8601, in UTC without a time zone.
        seq: The moment just after the message with this seq.
        offset: The moment just after the message at this Kafka offset.

    Raises:
        UsageError: Not exactly one is given, or `ts` cannot be parsed.
    """
    given = [name for name, value in (("--ts", ts), ("--seq", seq), ("--offset", offset)) if value is not None]
    if len(given) != 1:
        raise UsageError(
            f"session as-of: exactly one moment is needed, but these were given: {', '.join(given) or 'none'}",
            fix="Give one of --ts TIME, --seq SEQ and --offset OFFSET",
        )
    return SessionMoment(ts=None if ts is None else _parse_time_as_milliseconds(ts), seq=seq, offset=offset)


def _parse_time_as_milliseconds(ts: str) -> int:
    if _MS.fullmatch(ts):
        return int(ts)
    try:
        return convert_datetime_to_ms(datetime.fromisoformat(ts))
    except ValueError:
        raise UsageError(
            f"--ts {ts!r} is not a time",
            fix="Write it in ISO 8601, as in 2026-11-21T18:18:32.668Z, or as milliseconds since 1970",
        ) from None
