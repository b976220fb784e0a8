"""What a receipt says beside what was removed: the search through what is left, and what is for others to remove."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.operations.forgetting.publications import publications
from sessionlake.operations.forgetting.search import pattern, search
from sessionlake.protocol.names import quote
from sessionlake.publish.outlets import outlets
from sessionlake.settings.kafka import SourceKind
from sessionlake.settings.model import Settings
from sessionlake.streaming.operation import FORGET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The embedded broker's own files: Kafka is the source.
_BROKER = "kafka"
# How the names of types begin that can have a text in them.
_WITH_TEXT = ("string", "binary", "array", "map", "struct")


def proof(spark: SparkSession, lake: Lake, session: str) -> dict[str, Any]:
    """What was searched for the session's id, where it still stands, and which files could not be read."""
    settings = lake.settings
    beside = Path(settings.checkpoint(""))
    folders = [settings.home] if beside.is_relative_to(settings.home) else [settings.home, beside]
    searched = [search(folder, session, (_BROKER,)) for folder in folders if folder.is_dir()]
    # The note of what is left to do names it, and is removed when all is done.
    own = FORGET.file(settings).name
    found = sorted({str(place) for part in searched for place in part.found if Path(place.place).name != own})
    asked: list[str] = []
    if lake.storage.needs_spark:
        asked = [table for table in (*TABLES, *settings.own_tables) if lake.exists(spark, table)]
        found += [f"{table}, column {name}" for table in asked for name in _columns_with(spark, lake, table, session)]
    files, size = sum(part.files for part in searched), sum(part.size for part in searched)
    unread = sorted({place for part in searched for place in part.unread})
    return {"files": files, "bytes": size, "tables": len(asked), "found": found, "unread": unread}


def _columns_with(spark: SparkSession, lake: Lake, table: str, session: str) -> list[str]:
    """The columns of a table in whose values the id stands by itself, however deep."""
    from pyspark.sql import functions as F

    rows, text = lake.read(spark, table), pattern(session)
    own = [name for name, kind in rows.dtypes if kind.startswith(_WITH_TEXT)]
    if not own:
        return []
    hits = rows.agg(*(F.max(F.col(quote(name)).cast("string").rlike(text)).alias(name) for name in own)).first()
    return [] if hits is None else [name for name in own if hits[name]]


def _of_source(settings: Settings, topic: str) -> str:
    if settings.bronze.archive is not None and settings.bronze.source is SourceKind.ARCHIVE:
        return (
            f"the archives in {settings.bronze.archive.path} that have the session's messages, until they are removed; "
            "of those that are yet to be taken, they are erased as they arrive"
        )
    if settings.bronze.source is SourceKind.KINESIS:
        return f"Kinesis: stream {topic} holds the session's messages until its retention removes them"
    return (
        f"Kafka: topic {topic} of {settings.kafka.bootstrap_servers} holds the session's messages until its retention "
        "removes them; read once more, they are erased as they arrive. Of a compacted topic, its producer removes them "
        "with a tombstone"
    )


def _unknown(spark: SparkSession, lake: Lake) -> list[str]:
    """Gold's tables that the configuration leaves out: they are not emptied, and may be of the session."""
    known = {*TABLES, *lake.settings.own_tables}
    return [table for table in lake.storage.tables(spark, GOLD) if table not in known]


def remains(spark: SparkSession, lake: Lake, topic: str) -> list[str]:
    """What is left to others, in sentences."""
    settings = lake.settings
    left = [
        _of_source(settings, topic),
        "whatever was copied out of the lake: backups, exports, reports, answers to queries",
    ]
    left += [
        f"{reader.name}: the tombstones are sent; its topic drops the rows before them when Kafka compacts it"
        for table in outlets(settings)
        for reader in publications(settings, table)
    ]
    left += [
        f"{table}: the configuration does not name it, so it keeps what it has of the session, figures among that, and "
        "its history: drop it"
        for table in _unknown(spark, lake)
    ]
    if settings.catalog is not None:
        left.append(
            "the tables' logs: entries of before name the session in statistics, until the platform cleans them up "
            "(delta.logRetentionDuration)"
        )
        left.append(
            "tables that `verify` and `rebuild` have made beside the lake's and dropped: a catalog that can restore "
            "dropped tables keeps their files until that time is over (Unity Catalog: UNDROP, some 7 days)"
        )
    return left
