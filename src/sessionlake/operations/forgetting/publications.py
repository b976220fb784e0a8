"""Publications of a table that rows were removed from: they must have sent the tombstones before its history goes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.errors import LakeError, SessionlakeError
from sessionlake.operations.maintenance import Reader, readers
from sessionlake.publish.job import require_feed
from sessionlake.publish.outlets import outlet_of
from sessionlake.settings.model import Settings
from sessionlake.streaming.checkpoint import last_committed, last_planned, read_delta_offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_SECONDS = 0.5
# A publication that has begun to read a version plans the rest of it with its next trigger, if there is any.
_TRIGGERS = 3


def publications(settings: Settings, table: str) -> list[Reader]:
    """The publications of a table that have begun."""
    readings = readers(settings, table)
    return [reader for reader in readings if reader.begun and reader.name.startswith(f"publish-{table}-")]


def refuse_given_up(spark: SparkSession, lake: Lake, tables: Iterable[str]) -> None:
    """Returns if every publication of these tables that has begun can send what is to be removed from them.

    Raises:
        LakeError: one could not; naming its checkpoint, for it may have been given up.
    """
    settings = lake.settings
    for table in tables:
        for reader in publications(settings, table):
            try:
                outlet_of(settings, table)
                require_feed(spark, lake, table)
            except SessionlakeError as error:
                raise LakeError(
                    f"forget: {reader.name} has yet to send that rows are removed, and cannot ({error}). Have it go on "
                    f"first; or, if it was given up, remove {settings.checkpoint(reader.name)}"
                ) from error


def wait(settings: Settings, removals: Mapping[str, int], seconds: float) -> None:
    """Returns when every publication has sent all up to the version of its table that has less rows.

    Args:
        removals: tables, and these versions.

    Raises:
        LakeError: one has not in time.
    """
    deadline = time.monotonic() + seconds
    for table, version in removals.items():
        for reader in publications(settings, table):
            while not _has_sent(settings, reader.name, version):
                if time.monotonic() > deadline:
                    topic = reader.name.removeprefix(f"publish-{table}-")
                    raise LakeError(
                        f"{reader.name} has yet to send what changed until the session's rows were removed: run "
                        f"`sessionlake publish {table} --topic {topic} --once`, or, if it was given up, remove "
                        f"{settings.checkpoint(reader.name)}; then `sessionlake forget` again, which goes on from there"
                    )
                time.sleep(_LOOK_SECONDS)


def first_needed(settings: Settings, table: str, removal: int) -> int | None:
    """The oldest version of the table's log that its publications go on with; None if there are none.

    Of what was before the removal, which the last batch of one may have begun with, nothing can stay.

    Args:
        removal: the version from which on the session's rows are gone.
    """
    known = [(reader.since, reader.needs or 0) for reader in publications(settings, table) if reader.since is not None]
    return min((min(since, max(needs, removal)) for since, needs in known), default=None)


def _has_sent(settings: Settings, name: str, version: int) -> bool:
    """Whether it is past the version, or has begun with it and finds no more."""
    since, index, batch = _place(settings, name)
    if since > version:
        return True
    if since < version or index < 0:
        return False
    time.sleep(_TRIGGERS * settings.publish.trigger.total_seconds())
    return _place(settings, name) == (since, index, batch)


def _place(settings: Settings, name: str) -> tuple[int, int, int]:
    """Version and place in it that a publication has come to, and its last batch; -1 where that is not known."""
    checkpoint = Path(settings.checkpoint(name))
    batch = last_committed(checkpoint)
    if batch is None or batch != last_planned(checkpoint):
        return -1, -1, -1
    place = read_delta_offset(checkpoint, batch)
    return (-1, -1, batch) if place.in_initial_snapshot else (place.version, place.index, batch)
