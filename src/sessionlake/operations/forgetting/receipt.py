"""The receipt's parts about remaining data: where the session's id was still found, and what others must remove."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.operations.forgetting.publications import list_started_publications
from sessionlake.operations.forgetting.search import build_search_pattern, search_folder_for_text
from sessionlake.protocol.names import quote
from sessionlake.publish.publishable import list_publishable_tables
from sessionlake.settings.kafka import MessageSourceKind
from sessionlake.settings.model import Settings
from sessionlake.streaming.operation import FORGET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The folder of the embedded broker. It is not searched, because Kafka is the source and not part of the lake.
_BROKER = "kafka"
# Types whose values can contain text begin with one of these.
_WITH_TEXT = ("string", "binary", "array", "map", "struct")


def search_lake_for_session(spark: SparkSession, lake: Lake, session_id: str) -> dict[str, Any]:
    """Searches all files of the home, and in a catalog all tables, for a session's id.

    Returns:
        The part `search` of the receipt: `files` and `bytes` that were searched, the number of `tables`, the places
        `found`, and the files `unread` because they are damaged.
    """
    settings = lake.settings
    checkpoints = Path(settings.checkpoint_path(""))
    folders = [settings.home] if checkpoints.is_relative_to(settings.home) else [settings.home, checkpoints]
    searched = [search_folder_for_text(folder, session_id, (_BROKER,)) for folder in folders if folder.is_dir()]
    # The journal of this forgetting names the session, and is removed at the end.
    journal = FORGET.find_journal_file(settings).name
    found = sorted({str(place) for part in searched for place in part.found if Path(place.place).name != journal})
    tables: list[str] = []
    if lake.storage.needs_spark:
        tables = [table for table in (*TABLES, *settings.added_table_names) if lake.exists(spark, table)]
        found += [
            f"{table}, column {name}"
            for table in tables
            for name in _find_columns_containing(spark, lake, table, session_id)
        ]
    files, size = sum(part.files for part in searched), sum(part.size for part in searched)
    unread = sorted({place for part in searched for place in part.unread})
    return {"files": files, "bytes": size, "tables": len(tables), "found": found, "unread": unread}


def _find_columns_containing(spark: SparkSession, lake: Lake, table: str, session_id: str) -> list[str]:
    """Returns the names of the table's columns that contain the session's id in a value, at any nesting depth."""
    from pyspark.sql import functions as F

    rows, text = lake.read(spark, table), build_search_pattern(session_id)
    text_columns = [name for name, kind in rows.dtypes if kind.startswith(_WITH_TEXT)]
    if not text_columns:
        return []
    hits = rows.agg(
        *(F.max(F.col(quote(name)).cast("string").rlike(text)).alias(name) for name in text_columns)
    ).first()
    return [] if hits is None else [name for name in text_columns if hits[name]]


def _describe_messages_left_in_source(settings: Settings, topic: str) -> str:
    """Returns a text that says where the topic's messages remain in bronze's source: an archive, Kinesis or Kafka."""
    if settings.bronze.archive is not None and settings.bronze.source is MessageSourceKind.ARCHIVE:
        return (
            f"the archives in {settings.bronze.archive.path} that have the session's messages, until you remove them. "
            f"If bronze reads more of them, {_describe_messages_that_arrive_again(settings)}"
        )
    if settings.bronze.source is MessageSourceKind.KINESIS:
        return f"Kinesis: stream {topic} holds the session's messages until its retention removes them"
    return (
        f"Kafka: topic {topic} of {settings.kafka.bootstrap_servers} holds the session's messages until its retention "
        f"removes them. If bronze reads them again, {_describe_messages_that_arrive_again(settings)}. In a compacted "
        "topic, its producer must remove them with a tombstone"
    )


def _describe_messages_that_arrive_again(settings: Settings) -> str:
    if settings.capture.feeds:
        return "they are a new session, because feeds find the session only inside messages"
    return "it erases them on arrival"


def _list_unconfigured_gold_tables(spark: SparkSession, lake: Lake) -> list[str]:
    """Returns gold's tables that are not in the configuration. They are not emptied, and may contain the session."""
    known = {*TABLES, *lake.settings.added_table_names}
    return [table for table in lake.storage.list_tables(spark, GOLD) if table not in known]


def list_copies_outside_lake(spark: SparkSession, lake: Lake, topic: str) -> list[str]:
    """Returns a text for each place outside the lake's control where data of the session may remain."""
    settings = lake.settings
    places = [
        _describe_messages_left_in_source(settings, topic),
        "whatever was copied out of the lake: backups, exports, reports, answers to queries",
    ]
    places += [
        f"{reader.name}: the tombstones are sent. Its topic drops the earlier rows when Kafka compacts it"
        for table in list_publishable_tables(settings)
        for reader in list_started_publications(settings, table)
    ]
    places += [
        f"{table}: the table is not in the configuration, so its rows, figures and history may still contain the "
        "session. Drop it"
        for table in _list_unconfigured_gold_tables(spark, lake)
    ]
    if settings.catalog is not None:
        places.append(
            "the tables' logs: older entries contain the session in statistics, until the platform removes them "
            "(delta.logRetentionDuration)"
        )
        places.append(
            "staging tables that `verify` and `rebuild` have created and dropped: a catalog that can restore dropped "
            "tables keeps their files for a time (Unity Catalog: UNDROP, about 7 days)"
        )
    return places
