"""One session, looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.commands.show import Format, collected, show
from sessionlake.config import Settings
from sessionlake.errors import LakeError, UsageError
from sessionlake.lake.tables import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SESSIONS = "silver.sessions"
_ROWS = "silver.session_rows"
_NAMED = 5


def show_session(spark: SparkSession, settings: Settings, session: str, topic: str | None, form: Format) -> None:
    """Writes the rows of a session's table as it is now, by row id.

    Raises:
        LakeError: silver has no tables yet.
        UsageError: there is no such session, or several topics have one and `topic` is None.
    """
    from pyspark.sql import functions as F

    lake = Lake(settings)
    if not lake.exists(spark, _SESSIONS):
        raise LakeError(f"no sessions in {settings.home} yet: fill it with `sessionlake run all --once`")
    known = lake.read(spark, _SESSIONS).where(F.col("session_id") == session).select("topic").collect()
    topics = sorted(row["topic"] for row in known if topic in (None, row["topic"]))
    if not topics:
        raise UsageError(f"session {session!r}{f' of topic {topic}' if topic else ''} is unknown; {_some(spark, lake)}")
    if len(topics) > 1:
        raise UsageError(f"session {session!r} exists in {', '.join(topics)}: choose one with --topic")
    rows = lake.read(spark, _ROWS).where((F.col("topic") == topics[0]) & (F.col("session_id") == session))
    show(*collected(rows.drop("topic", "session_id").orderBy("row_id")), form)


def _some(spark: SparkSession, lake: Lake) -> str:
    rows = lake.read(spark, _SESSIONS).select("topic", "session_id").orderBy("topic", "session_id").limit(_NAMED)
    found = [f"{row['session_id']} ({row['topic']})" for row in rows.collect()]
    return f"there are {', '.join(found)}, …" if found else "there are no sessions yet"
