"""Waits for publications of tables from which a session's rows are removed.

A publication sends a table's changes to Kafka. It must send the tombstones of the removed rows before the table's
history, from which it reads them, is removed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.errors import LakeError, SessionlakeError
from sessionlake.operations.maintenance import ReadingStreamProgress, list_streams_reading_table
from sessionlake.publish.job import require_change_feed
from sessionlake.publish.publishable import require_publishable
from sessionlake.settings.model import Settings
from sessionlake.streaming.checkpoint import read_delta_offset, read_last_committed_batch, read_last_planned_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.5
# A publication that has started to read a version plans the rest of it at its next trigger. So no batch after this
# number of triggers means that the version is read completely.
_TRIGGERS = 3


def list_started_publications(settings: Settings, table: str) -> list[ReadingStreamProgress]:
    """Returns the started publications of a table, with their progress.

    A publication sends the table's changes to Kafka.
    """
    readings = list_streams_reading_table(settings, table)
    return [reader for reader in readings if reader.has_started and reader.name.startswith(f"publish-{table}-")]


def require_publications_can_send(spark: SparkSession, lake: Lake, tables: Iterable[str]) -> None:
    """Checks that every started publication of these tables will be able to send the tombstones of removed rows.

    Raises:
        LakeError: A publication is not able to. The text names its checkpoint, because it may no longer be in use.
    """
    settings = lake.settings
    for table in tables:
        for reader in list_started_publications(settings, table):
            try:
                require_publishable(settings, table)
                require_change_feed(spark, lake, table)
            except SessionlakeError as error:
                raise LakeError(
                    f"forget: the publication {reader.name} must send to Kafka that the session's rows are "
                    f"removed, and cannot ({error})",
                    fix="Correct the cause, and run `sessionlake forget --resume`. If the publication is not "
                    f"used any more, remove its checkpoint {settings.checkpoint_path(reader.name)}",
                ) from error


def wait_until_removals_sent(settings: Settings, removals: Mapping[str, int], timeout_seconds: float) -> None:
    """Waits until every publication has sent the removal of the session's rows, and all changes before it, to Kafka.

    Args:
        removals: By table name, the table's first version without the session's rows.
        timeout_seconds: The longest time to wait.

    Raises:
        LakeError: A publication has not sent the removal in time.
    """
    deadline = time.monotonic() + timeout_seconds
    for table, version in removals.items():
        for reader in list_started_publications(settings, table):
            while not _has_sent_version(settings, reader.name, version):
                if time.monotonic() > deadline:
                    topic = reader.name.removeprefix(f"publish-{table}-")
                    raise LakeError(
                        f"forget: the publication {reader.name} has not sent to Kafka yet that the session's rows "
                        "are removed",
                        why="Readers of its topic would keep the rows",
                        fix=f"Run `sessionlake publish {table} --topic {topic} --once`, or, if the publication is not "
                        f"used any more, remove its checkpoint {settings.checkpoint_path(reader.name)}. Then run "
                        "`sessionlake forget --resume`, which continues from here",
                    )
                time.sleep(_POLL_SECONDS)


def find_oldest_version_needed_by_publications(settings: Settings, table: str, removal_version: int) -> int | None:
    """Returns the oldest version of a table that a publication still needs; None if no publication's progress is known.

    Versions before the removal contain the session's rows, so they are needed only by a publication that still reads
    them.

    Args:
        removal_version: The table's first version without the session's rows.
    """
    known = [
        (reader.next_version, reader.oldest_needed_version or 0)
        for reader in list_started_publications(settings, table)
        if reader.next_version is not None
    ]
    return min((min(since, max(oldest, removal_version)) for since, oldest in known), default=None)


def _has_sent_version(settings: Settings, publication: str, version: int) -> bool:
    """Returns True if the publication has sent all changes of its table up to this version of the table.

    Looks at the publication's checkpoint, and does not wait. All changes are sent if the publication reads a later
    version already, or if it reads this version and its last batch is older than several trigger intervals.
    """
    since, index, batch = _read_publication_position(settings, publication)
    if since > version:
        return True
    if since < version or index < 0:
        return False
    time.sleep(_TRIGGERS * settings.publish.trigger.total_seconds())
    return _read_publication_position(settings, publication) == (since, index, batch)


def _read_publication_position(settings: Settings, publication: str) -> tuple[int, int, int]:
    """Returns how far a publication has read.

    A tuple: the table's version that it reads, the index of the next file in that version, and the number of its last
    batch.

    A number that is not known is -1.
    """
    checkpoint = Path(settings.checkpoint_path(publication))
    batch = read_last_committed_batch(checkpoint)
    if batch is None or batch != read_last_planned_batch(checkpoint):
        return -1, -1, -1
    place = read_delta_offset(checkpoint, batch)
    return (-1, -1, batch) if place.in_initial_snapshot else (place.version, place.index, batch)
